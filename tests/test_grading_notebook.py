"""Reading what learners hand in, whatever has happened to the file, and pairing it with the course's edition."""

import csv
import io
import json
import random
from pathlib import Path

import nbformat
import pytest
from grading_helpers import NAME, RIGHT, answered, find, given, insert, marks, save, solved, statuses

from labkit.course.grading import cells, files, notebook, report
from labkit.course.grading.files import grade, judge_file
from labkit.course.grading.report import COULD_NOT_RUN
from labkit.course.grading.run import Run
from labkit.course.grading.workers import Workers
from labkit.errors import LabkitError

pytest_plugins = ["grading_home"]

ALL = dict.fromkeys(RIGHT, "passed")


def raw(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


DAMAGED = {
    "broken": ("{broken", "damaged"),
    "cut off": (None, "damaged"),
    "empty": ("", "damaged"),
    "binary": (b"\x80\x02\xff\x00" * 50, "damaged"),
    "UTF-16": ('{"cells": []}'.encode("utf-16"), "UTF-16"),
    "UTF-16 unmarked": ('{"cells": []}'.encode("utf-16-le"), "UTF-16"),
    "merge conflict": ('{"cells": [\n<<<<<<< HEAD\n]}', "merge"),
    "deep": ("[" * 200_000, "damaged"),
    "a list": ("[1, 2]", "not a Jupyter notebook"),
    "a string": ('"text"', "not a Jupyter notebook"),
    "no cells": ('{"nbformat": 4, "metadata": {}}', "not a Jupyter notebook"),
    "old": ('{"nbformat": 2, "worksheets": 3}', "not a Jupyter notebook"),
    "of the future": ('{"nbformat": 99, "cells": []}', "not a Jupyter notebook"),
    "another course": ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "1"}]}', "not a notebook of"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_said_in_words(
    kind: str, tmp_path: Path, grading_home: Path, workers: Workers
) -> None:
    content, said = DAMAGED[kind]
    path = tmp_path / "x.ipynb"
    if content is None:
        content = save(solved(), tmp_path, "whole.ipynb").read_text(encoding="utf-8")[:-200]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    grade = judge_file(path, workers)[1]
    assert said in grade.error and "x.ipynb" in grade.error and grade.code == COULD_NOT_RUN


def test_missing_and_huge_files(tmp_path: Path, grading_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabkitError, match=r"no file nowhere\.ipynb"):
        notebook.read(tmp_path / "nowhere.ipynb")
    monkeypatch.setattr(cells, "LIMIT", 100)
    with pytest.raises(LabkitError, match="Clear its outputs"):
        notebook.read(save(given(), tmp_path))


def test_random_damage_never_raises_anything_else(tmp_path: Path, grading_home: Path) -> None:
    rng = random.Random()
    whole = raw(save(answered(), tmp_path))
    junk = [None, 3, "x", [], {}, [None], {"a": 1}, True, -1.5, ["x", 3]]
    for _ in range(300):
        content = json.loads(json.dumps(whole))
        for _ in range(rng.randint(1, 5)):
            place, key = content, rng.choice(["cells", "metadata", "nbformat"])
            while rng.random() < 0.8 and place[key] and isinstance(place[key], dict | list):
                place = place[key]
                key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            place[key] = json.loads(json.dumps(rng.choice(junk)))
        path = tmp_path / "damaged.ipynb"
        path.write_text(json.dumps(content), encoding="utf-8")
        try:
            submission = notebook.read(path)
        except LabkitError:
            continue
        nbformat.validate(submission.copy)
        assert set(submission.jobs) == set(RIGHT)


def test_deleted_answer_is_said_and_costs_itself_only(tmp_path: Path, workers: Workers) -> None:
    handed_in = answered()
    handed_in.cells.remove(find(handed_in, "centred"))
    grade = marks(handed_in, tmp_path, workers)
    assert statuses(grade) == {**ALL, "centred": "not attempted"}
    assert "no cell for centred" in grade.verdicts[1].message


def test_deleted_checks_set_up_and_prose_come_back(tmp_path: Path, workers: Workers) -> None:
    handed_in = answered()
    handed_in.cells = [cell for cell in handed_in.cells if cell.id in RIGHT]
    assert statuses(marks(handed_in, tmp_path, workers)) == ALL
    submission = notebook.read(save(handed_in, tmp_path))
    stubs = [cell.source for cell in given().cells]
    assert [
        RIGHT.get(cell.exercise if cell.role == "answer" else "", cell.source) for cell in submission.cells
    ] == [RIGHT.get(cell.id, cell.source) for cell in given().cells if cell.cell_type == "code"]
    assert len(submission.copy.cells) == len(stubs)


def test_changed_checks_and_set_up_are_put_back(tmp_path: Path, grading_home: Path) -> None:
    handed_in = answered()
    for cell in handed_in.cells:
        if cell.id.startswith("check-"):
            cell.source = "print('✓ right.')"
        if "import grading_exercises" in cell.source:
            cell.source = "import math, os\nfrom labkit.course import check, show\ncheck = print"
    submission = notebook.read(save(handed_in, tmp_path))
    sources = [cell.source for cell in submission.cells]
    assert not any("print('✓" in source for source in sources)
    assert sources[0].startswith("import math\n\nimport grading") and sources[1] == "import math, os"
    assert all("labkit" not in line for job in submission.jobs.values() if job for line in job.imports)


def test_order_does_not_matter_and_own_cells_follow_their_neighbour(tmp_path: Path, workers: Workers) -> None:
    handed_in = answered()
    handed_in.cells.reverse()
    assert statuses(marks(handed_in, tmp_path, workers)) == ALL
    handed_in = insert(insert(answered(), "centred", "mine = 1"), "", "last = 2")
    sources = [cell.source for cell in notebook.read(save(handed_in, tmp_path)).cells]
    assert sources.index("mine = 1") == sources.index(RIGHT["centred"]) - 1 and sources[-1] == "last = 2"


def test_ids_and_metadata_lost_on_the_way(tmp_path: Path, workers: Workers) -> None:
    for drop in (["id"], ["metadata"], ["id", "labkit"], ["id", "nbgrader"]):
        content = raw(save(answered(), tmp_path))
        for number, cell in enumerate(content["cells"]):
            if "metadata" in drop:
                cell["metadata"] = {}
            for key in ("labkit", "nbgrader"):
                if key in drop:
                    cell["metadata"].pop(key, None)
            if "id" in drop:
                cell["id"] = f"new-{number}"
        content["metadata"] = {} if drop != ["metadata"] else content["metadata"]
        path = tmp_path / "changed.ipynb"
        path.write_text(json.dumps(content), encoding="utf-8")
        assert statuses(judge_file(path, workers)[1]) == ALL, drop


def test_pasted_split_and_retyped_answers(tmp_path: Path, workers: Workers) -> None:
    content = raw(save(answered(), tmp_path))
    answer = next(cell for cell in content["cells"] if cell["id"] == "spread")
    place = content["cells"].index(answer)
    path = tmp_path / "changed.ipynb"

    def outcome(cells: list[dict]) -> str:
        path.write_text(json.dumps({**content, "cells": cells}), encoding="utf-8")
        return statuses(judge_file(path, workers)[1])["spread"]

    before, after = content["cells"][:place], content["cells"][place + 1 :]
    wrong = {**answer, "source": "def spread(values):\n    return -1.0"}
    half = {**answer, "source": "# the upper half of a split cell"}
    assert outcome([*before, answer, {**wrong, "id": "pasted"}, *after]) == "passed"
    assert outcome([*before, wrong, {**answer, "id": "pasted"}, *after]) == "failed"
    assert outcome([*before, answer, wrong, *after]) == "passed"  # the same id twice
    assert outcome([*before, half, {**answer, "id": "lower"}, *after]) == "passed"
    assert outcome([*before, {**answer, "cell_type": "markdown"}, *after]) == "not attempted"
    own = {
        "cell_type": "code",
        "metadata": {},
        "source": answer["source"],
        "outputs": [],
        "execution_count": None,
    }
    assert outcome([*before, {**own, "id": "mine"}, *after]) == "passed"


def test_several_files_folders_and_reports(
    tmp_path: Path, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    good = save(solved(), tmp_path / "class" / "ada")
    untouched = save(given(), tmp_path / "class" / "bob")
    save(solved(), tmp_path / "class" / "ada" / ".ipynb_checkpoints")
    bad = tmp_path / "class" / "cleo" / "handed-in.ipynb"
    bad.parent.mkdir()
    bad.write_text("{", encoding="utf-8")

    assert grade([tmp_path / "class"], run_notebook=False) == 2
    text = capsys.readouterr().out
    assert "6 of 6 points" in text and "0 of 6 points" in text and "damaged" in text and "1 of 3" in text

    grades = [judge_file(path, workers)[1] for path in (good, bad, untouched)]
    assert [report.exit_code(some) for some in (grades, grades[:1], grades[::2], [])] == [2, 0, 1, 0]
    found = json.loads(report.as_json(grades))
    assert [entry["points"] for entry in found] == [6, 0, 0] and [entry["exit_code"] for entry in found] == [
        0,
        2,
        1,
    ]
    assert [row["status"] for row in found[2]["exercises"]] == ["not attempted"] * 3
    rows = list(csv.DictReader(io.StringIO(report.as_csv(grades))))
    assert [row["status"] for row in rows] == ["passed"] * 3 + ["could not run"] + ["not attempted"] * 3
    assert sum(int(row["points"] or 0) for row in rows) == 6 and {row["notebook"] for row in rows} == {
        NAME,
        "",
    }


def test_each_result_is_said_as_soon_as_it_is_known(
    tmp_path: Path, grading_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the machine go down in the middle, what was graded until then stands on the screen."""
    said: list[str] = []
    before_run: list[int] = []

    def run(*_: object, **__: object) -> Run:
        before_run.append(len(said))
        return Run(True, "It ran.")

    monkeypatch.setattr(files, "run", run)
    handed_in = [save(given(), tmp_path, "a.ipynb"), save(given(), tmp_path, "b.ipynb")]
    assert grade(handed_in, say=said.append) == 1
    assert before_run == [2, 3]
    assert ["It ran." in text for text in said] == [False, False, True, True, False]
    assert [name for text in said for name in ("a.ipynb", "b.ipynb") if name in text] == [
        "a.ipynb",
        "b.ipynb",
    ] * 2


def test_a_report_can_be_written_whatever_a_learner_raises(tmp_path: Path, workers: Workers) -> None:
    """Lone surrogates no encoding knows; escape sequences would let an answer repaint the teacher's screen."""
    raising = answered(spread="def spread(values):\n    raise ValueError('\\ud800 \\x1b[2J \\x00 naïve ✓')")
    path = save(raising, tmp_path, "\x1b[2J\udcff.ipynb")
    grades = [judge_file(path, workers)[1]]
    for text in (report.as_text(grades[0]), report.as_json(grades), report.as_csv(grades)):
        assert "naïve ✓" in text and "\\ud800" in text
        assert not {"\x1b", "\x00"} & set(text.encode("utf-8").decode("utf-8"))


def test_what_cannot_be_verified_here_is_exit_3(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.course.grading import verdict

    monkeypatch.setattr(verdict, "available", lambda needs: False)
    grade = marks(answered(), tmp_path, workers)
    assert set(statuses(grade).values()) == {"not verified"} and (grade.points, grade.code) == (0, 3)
    grade = marks(answered(spread=""), tmp_path, workers)
    assert statuses(grade)["spread"] == "not attempted" and grade.code == 1


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"memory": -1.0}, {"timeout": float("nan")}])
def test_limits_must_be_positive(limits: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(LabkitError, match="more than zero"):
        grade([tmp_path], **limits)


def test_nothing_to_grade(tmp_path: Path) -> None:
    with pytest.raises(LabkitError, match="no notebook"):
        grade([tmp_path])
