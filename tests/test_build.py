"""Sources become notebooks: valid, deterministic, and a wrong source is one clear error."""

import dataclasses
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbclient import NotebookClient

from labkit import paths, results
from labkit.course import edition, exercises, ledger, outputs
from labkit.course import source as sources
from labkit.course.build import _record_rungs, build, drifted, pristine
from labkit.course.exercise import Exercise
from labkit.errors import LabkitError

pytest_plugins = ["course_home"]


def source_of(home):
    return home / "solutions" / "90_demo.py"


def changed(home, old, new, count=1):
    text = source_of(home).read_text()
    assert old in text
    return text.replace(old, new, count)


def cell(notebook, name):
    return next(cell for cell in notebook.cells if cell.id == name)


def test_the_learners_edition_has_stubs_ids_and_metadata(home):
    notebook = pristine(source_of(home))
    nbformat.validate(notebook)
    answer, check = cell(notebook, "mean_gap"), cell(notebook, "check-mean_gap")
    assert answer.source.endswith("    # your code here\n    raise NotImplementedError()")
    assert '"""The mean gap' in answer.source and "SOLUTION" not in json.dumps(notebook)
    assert "first = 1" in cell(notebook, "twice").source  # given lines stay
    assert answer.metadata.labkit.role == "answer" and answer.metadata.labkit.exercise == "mean_gap"
    assert check.source == "check.mean_gap(mean_gap)"
    assert answer.metadata.nbgrader.solution and not answer.metadata.nbgrader.grade
    assert (
        check.metadata.nbgrader.grade
        and check.metadata.nbgrader.locked
        and check.metadata.nbgrader.points == 2
    )
    assert (
        answer.metadata.nbgrader.grade_id == "mean_gap"
        and check.metadata.nbgrader.grade_id == "check-mean_gap"
    )
    marked = [cell.id for cell in notebook.cells if "nbgrader" in cell.metadata]
    assert len(marked) == 6
    (set_up,) = [cell for cell in notebook.cells if cell.metadata.get("labkit", {}).get("role") == "setup"]
    assert "import math" in set_up.source
    own = notebook.metadata.labkit
    assert own.notebook == "90_demo" and own.exercises == ["mean_gap", "doubled", "twice"]
    assert re.fullmatch("[0-9a-f]{64}", own.source_hash)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert [cell for cell in notebook.cells if cell.metadata.get("tags") == ["picture"]]


def test_nbgrader_accepts_both_editions(home):
    from nbgrader.preprocessors import CheckCellMetadata
    from nbgrader.utils import determine_grade
    from nbgrader.validator import Validator

    for notebook in (pristine(source_of(home)), edition.full(sources.read(source_of(home)))):
        CheckCellMetadata().preprocess(notebook, {})
        for one in notebook.cells:
            if one.metadata.get("nbgrader", {}).get("grade"):
                assert determine_grade(one, logging.getLogger())[1] > 0
    assert Validator


def test_the_same_source_gives_the_same_bytes_in_another_process(home):
    here = edition.dumps(pristine(source_of(home)))
    code = (
        "import sys, demo_exercises; demo_exercises.install()\n"
        "from pathlib import Path; from labkit.course import edition; from labkit.course.build import pristine\n"
        "sys.stdout.buffer.write(edition.dumps(pristine(Path(sys.argv[1]))).encode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(source_of(home))], capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode() == here
    source_of(home).write_bytes(source_of(home).read_bytes().replace(b"\n", b"\r\n"))
    assert edition.dumps(pristine(source_of(home))) == here


def test_ids_of_other_cells_survive_an_insertion(home):
    before = {cell.id: cell.source for cell in pristine(source_of(home)).cells}
    source_of(home).write_text(changed(home, "# %% role=", "# %% [markdown]\n# New.\n\n# %% role="))
    after = {cell.id: cell.source for cell in pristine(source_of(home)).cells}
    assert set(before) < set(after) and len(after) == len(before) + 1
    assert all(after[name] == before[name] for name in before)


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """The demo's executed solution; executing takes seconds, so the tests below share it."""
    kept = {}

    def get(home):
        if not kept:
            build(["90"], say=lambda _: None)
            kept["folder"] = tmp_path_factory.mktemp("built")
            for name in ("solutions", "notebooks"):
                shutil.copyfile(home / name / "90_demo.ipynb", kept["folder"] / f"{name}.ipynb")
        for name in ("solutions", "notebooks"):
            (home / name).mkdir(exist_ok=True)
            shutil.copyfile(kept["folder"] / f"{name}.ipynb", home / name / "90_demo.ipynb")
        return nbformat.read(home / "solutions" / "90_demo.ipynb", as_version=4)

    return get


def test_the_solution_has_outputs_pictures_and_nothing_of_this_machine(home, run_once):
    notebook = run_once(home)
    nbformat.validate(notebook)
    text = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "✓ mean_gap: right." in json.dumps(notebook, ensure_ascii=False)
    assert "image/png" in text and "widget-view" not in text and "widgets" not in notebook.metadata
    assert not re.search(r"0x[0-9a-f]{6}", text) and str(home) not in text and "labkit-build-" not in text
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert notebook.metadata.labkit.executed.seconds > 0
    assert "### BEGIN SOLUTION" in cell(notebook, "mean_gap").source
    assert not (paths.work() / ".labkit").exists()  # building never touches the learner's progress


def test_check_is_quiet_about_a_learners_edits_and_names_stale_outputs(home, run_once):
    run_once(home)
    said = []
    assert build(check=True, say=said.append) == 0
    notebook = nbformat.read(home / "notebooks" / "90_demo.ipynb", as_version=4)
    notebook.cells[4].source = "my = 'edit'"
    nbformat.write(notebook, home / "notebooks" / "90_demo.ipynb")
    assert build(check=True, say=said.append) == 0
    source_of(home).write_text(changed(home, "E = m c^2", "E = mc^2"))
    assert drifted(source_of(home)) == [
        "90_demo: the learner's notebook is older than its source.",
        "90_demo: the executed solution is older than its source; its code cells are unchanged.",
    ]
    source_of(home).write_text(changed(home, "print(object(), check, math.pi)", "print(check)"))
    assert build(["90_demo"], check=True, say=said.append) == 1
    assert "stale outputs: code cells 13" in said[-1]


def test_new_words_keep_outputs_and_new_code_is_run(home, run_once, monkeypatch):
    before = run_once(home)
    ran = []
    monkeypatch.setattr("labkit.course.build.executed", lambda *given, **kept: ran.append(1) or before)
    source_of(home).write_text(changed(home, "E = m c^2", "E = mc^2"))
    assert build(say=lambda line: None) == 0 and not ran
    after = nbformat.read(home / "solutions" / "90_demo.ipynb", as_version=4)
    assert "E = mc^2" in json.dumps(after) and "E = m c^2" not in json.dumps(after)
    code = [[cell for cell in each.cells if cell.cell_type == "code"] for each in (before, after)]
    assert [cell.outputs for cell in code[0]] == [cell.outputs for cell in code[1]]
    assert drifted(source_of(home)) == []
    build(execute=True, say=lambda line: None)
    assert ran == [1]
    source_of(home).write_text(changed(home, "print(object(), check, math.pi)", "print(check)"))
    build(say=lambda line: None)
    assert ran == [1, 1]


def test_check_sees_changed_points_and_missing_or_broken_files(home, run_once, monkeypatch):
    run_once(home)
    more = Exercise("twice", "90_demo", "extra", 5, 4, len, len)
    monkeypatch.setitem(exercises._registry, "twice", more)
    assert all("points" in line for line in drifted(source_of(home))) and len(drifted(source_of(home))) == 2
    monkeypatch.undo()


def test_missing_and_broken_editions_are_drift(home, run_once):
    run_once(home)
    (home / "notebooks" / "90_demo.ipynb").unlink()
    (home / "solutions" / "90_demo.ipynb").write_text("{")
    assert drifted(source_of(home)) == [
        "90_demo: the learner's notebook is missing.",
        "90_demo: the executed solution cannot be read.",
    ]


SHORT = """# %% role="setup"
import demo_exercises
from labkit.course import check

demo_exercises.install()

# %% [markdown]
# Words.

# %%
STATEMENT
"""


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("raise KeyError('lost')", r'cell 3 \("raise.*KeyError'),
        pytest.param("import os; os._exit(1)", "kernel died in cell 3", marks=pytest.mark.slow),
        pytest.param("while True: pass", "cell 3 .*more than 4 s", marks=pytest.mark.slow),
    ],
)
def test_a_solution_that_fails_is_not_written(home, monkeypatch, statement, says):
    monkeypatch.setattr(exercises, "of", lambda notebook: ())
    monkeypatch.setattr("labkit.course.build.CELL_SECONDS", 4)
    source_of(home).write_text(SHORT.replace("STATEMENT", statement))
    with pytest.raises(LabkitError, match=says):
        build(say=lambda _: None)
    assert not (home / "solutions" / "90_demo.ipynb").exists() and not (home / "notebooks").exists()


def test_rungs_measured_on_a_gpu_join_the_recorded_ladder(home, tmp_path, monkeypatch):
    rung = dataclasses.asdict(ledger.Rung("some batching", "labcoder", "x", ttft=0.25, notebook="90_demo"))
    (tmp_path / ".labkit").mkdir()
    (tmp_path / ".labkit" / "progress.json").write_text(json.dumps({"ledger": [rung]}))
    monkeypatch.setattr("labkit.results.device_name", lambda device=None: "Some GPU")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _record_rungs(tmp_path)
    assert results.load("ledger", "some-gpu") is None
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    _record_rungs(tmp_path)
    _record_rungs(tmp_path)
    (found,) = ledger.recorded("some-gpu")
    assert (found.name, found.ttft, found.tpot, found.notebook) == ("some batching", 0.25, None, "90_demo")


def with_outputs(*given):
    cell = nbformat.v4.new_code_cell(
        "x", id="x", outputs=[nbformat.v4.new_output(**output) for output in given]
    )
    cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    return nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {"state": {}}})


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def rich(**data):
    return {"output_type": "display_data", "data": data}


def test_a_file_too_large_is_refused_with_its_cell():
    notebook = with_outputs(rich(**{"image/png": "A" * 900_000}))
    with pytest.raises(LabkitError, match=r"0\.90 MB, more than 0\.8 MB: cell 1"):
        outputs.check_size(edition.dumps(notebook), notebook)
    small = with_outputs(rich(**{"image/png": "A" * 1000}))
    outputs.check_size(edition.dumps(small), small)


def test_streams_are_merged_settled_and_trimmed():
    lines = [stream(f"{number} {'a' * 900}\n") for number in range(500)]
    progress = [stream(f"\r{number}0 %", "stderr") for number in range(9)]
    notebook = with_outputs(*lines, *progress)
    outputs.clean(notebook)
    out, err = notebook.cells[0].outputs
    assert err.text == "80 %"
    assert len(out.text.splitlines()) <= outputs.LINES and "lines left out" in out.text
    assert max(map(len, out.text.splitlines())) <= outputs.WIDTH + 1
    assert out.text.startswith("0 a") and out.text.rstrip().splitlines()[-1].startswith("499 ")
    assert "execution" not in notebook.cells[0].metadata and "widgets" not in notebook.metadata


def test_widgets_leave_their_picture_or_nothing():
    view = {outputs.WIDGET_MIME: {"model_id": "1"}}
    notebook = with_outputs(
        rich(**view, **{"text/plain": "VBox()"}),
        rich(**view, **{"text/plain": "a plot", "image/png": "AA=="}),
    )
    outputs.clean(notebook)
    (kept,) = notebook.cells[0].outputs
    assert kept.data == {"text/plain": "a plot", "image/png": "AA=="}


@given(st.integers(0, 2**64 - 1))
def test_addresses_and_this_machines_folders_do_not_stay(address):
    here = [
        str(paths.root() / "data" / "x"),
        sys.prefix,
        str(Path.home() / "y"),
        "/tmp/ipykernel_47/88.py:3: Warn",
    ]
    text = "\n".join([f"<object object at 0x{address:012x}>", *here])
    notebook = with_outputs(stream(text), rich(**{"text/html": f"<p>{text}</p>", "text/plain": text}))
    outputs.clean(notebook)
    kept = json.dumps(notebook.cells[0].outputs)
    assert f"{address:012x}" not in kept and "ipykernel_" not in kept
    assert str(paths.root()) not in kept and str(Path.home()) + "/" not in kept and sys.prefix not in kept
    assert "data/x" in kept


FOREIGN = ["/home/someone/a.py", "/Users/ann/b", "C:\\Users\\ann", "file /mnt/disk/c", "('/opt/x/y',)"]
HARMLESS = ["https://example.org/home/x", "a/opt/b", "3 tokens/s", "</div>", "work/01.ipynb", "~/x"]


@pytest.mark.parametrize("path", FOREIGN)
def test_a_foreign_path_is_refused(path):
    with pytest.raises(LabkitError, match="Cell 1 prints a path"):
        outputs.clean(with_outputs(stream(f"read {path}\n")))


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_path_stays(text):
    notebook = with_outputs(stream(text))
    outputs.clean(notebook)
    assert notebook.cells[0].outputs[0].text == text


def cell_with(notebook, text):
    return next(cell for cell in notebook.cells if text in cell.source)


def run_all(notebook, folder):
    environment = {**os.environ, "LABKIT_WORK": str(folder)}
    NotebookClient(notebook, allow_errors=True, kernel_name="python3").execute(env=environment)
    return {
        cell.id: [output for output in cell.get("outputs", []) if output.output_type == "error"]
        for cell in notebook.cells
    }


def test_run_all_on_an_untouched_notebook_fails_in_check_cells_only(home, tmp_path):
    errors = run_all(pristine(source_of(home)), tmp_path / "w")
    failing = {name: found for name, found in errors.items() if found}
    assert set(failing) == {"check-mean_gap", "check-doubled", "check-twice"}
    for found in failing.values():
        assert found[0].ename == "NotAttempted" and len(found[0].traceback) <= 4
        assert not any("File" in line for line in found[0].traceback)


def test_a_later_redefinition_changes_neither_the_earlier_pass_nor_the_cells_after(home, tmp_path):
    notebook = edition.full(sources.read(source_of(home)))
    where = next(i for i, cell in enumerate(notebook.cells) if cell.id == "check-mean_gap")
    notebook.cells.insert(
        where + 1, nbformat.v4.new_code_cell("mean_gap = lambda stamps: 'something else'", id="later")
    )
    errors = run_all(notebook, tmp_path / "w")
    assert not any(errors.values())
    used = cell_with(notebook, "check.use(")
    assert "labkit's own is used" in used.outputs[0].text
    kept = json.loads((tmp_path / "w" / ".labkit" / "progress.json").read_text())
    assert kept["exercises"]["mean_gap"]["passed"]


BROKEN = {
    "unknown exercise": ('answer="doubled"', 'answer="doubles"', "no exercise called 'doubles'.*doubled"),
    "unknown in a check": ('check="doubled"', 'check="dooubled"', "Did you mean doubled"),
    "another notebook's": ('answer="doubled"', 'answer="elsewhere"', "belongs to 91_other"),
    "second answer": ('answer="doubled"', 'answer="mean_gap"', "def mean_gap"),
    "second check": (
        'check="doubled"\ncheck.doubled(doubled)',
        'check="mean_gap"\ncheck.mean_gap(mean_gap)',
        "second check",
    ),
    "check before answer": (
        "# %%\nledger.show()",
        '# %% check="doubled"\ncheck.doubled(doubled)\n\n# %%\nledger.show()',
        "before its answer",
    ),
    "no check": ('# %% check="doubled"\ncheck.doubled(doubled)', "# %%", "doubled has no check cell"),
    "no answer cell": ('# %% check="twice"\ncheck.twice(twice)', "# %%", "twice has no check"),
    "check says more": ("check.doubled(doubled)", "check.doubled(doubled)  # now", "exactly: check.doubled"),
    "no BEGIN": (
        "    ### BEGIN SOLUTION\n    return values",
        "    return values",
        "needs one line ### BEGIN",
    ),
    "no END": (
        "    return values + values\n    ### END SOLUTION",
        "    return values",
        "below it, one line ### END",
    ),
    "wrong order": (
        "    ### BEGIN SOLUTION\n    return values + values\n    ### END SOLUTION",
        "    ### END SOLUTION\n    return values + values\n    ### BEGIN SOLUTION",
        "needs one line",
    ),
    "misspelt mark": ("### BEGIN SOLUTION", "### BEGIN SOLUTIONS", "needs one line"),
    "empty solution": ("    return values + values\n    ### END", "    ### END", "empty"),
    "outside the function": (
        "def doubled(values):\n",
        "### BEGIN SOLUTION\n### END SOLUTION\ndef doubled(values):\n",
        "one line",
    ),
    "no docstring": ('    """Twice a tensor of any shape."""\n', "", "docstring"),
    "no function": ("def doubled(values):", "def double(values):", "def doubled"),
    "syntax error": ("return values + values", "return values +", "not valid Python"),
    "solution in a plain cell": (
        "print(object(), check, math.pi)",
        "### BEGIN SOLUTION\n1\n### END SOLUTION",
        "outside an answer",
    ),
    "solution in prose": ("# Prose with", "# ### BEGIN SOLUTION", "only a code cell"),
    "marked prose": ("# %% [markdown]\n", '# %% [markdown] role="setup"\n', "only a code cell"),
    "unknown role": ('role="setup"', 'role="start"', "unknown role 'start'"),
    "unknown mark": ('role="setup"', 'rolle="setup"', "unknown mark 'rolle'"),
    "two marks": ('role="setup"', 'role="setup" check="twice"', "not several"),
    "no set-up": ('# %% role="setup"', "# %%", "before the set-up"),
    "two set-ups": ("# %%\nledger.show()", '# %% role="setup"\nledger.show()', "second set-up"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_source_is_one_clear_error(home, case):
    exercises.add([Exercise("elsewhere", "91_other", "core", 1, 1, len, len)])
    old, new, says = BROKEN[case]
    source_of(home).write_text(changed(home, old, new))
    with pytest.raises(LabkitError, match=f"(?s){says}") as error:
        pristine(source_of(home))
    assert "90_demo.py" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# %%\n", b"\xff\xfe", b"# %% answer=\n"])
def test_odd_files(home, content):
    source_of(home).write_bytes(content)
    with pytest.raises(LabkitError, match="90_demo"):
        pristine(source_of(home))


def test_a_missing_exercise_and_a_missing_source(home):
    exercises.add([Exercise("fourth", "90_demo", "core", 1, 1, len, len)])
    with pytest.raises(LabkitError, match="no answer cell for the exercise fourth"):
        pristine(source_of(home))
    with pytest.raises(LabkitError, match=r"90_demo"):
        build(["90_dem"])
    source_of(home).unlink()
    with pytest.raises(LabkitError, match="solutions"):
        build()


LINES = [
    "# %%", "# %% [markdown]", '# %% role="setup"', '# %% answer="mean_gap"', '# %% check="mean_gap"', "# %% [raw]",
    "def mean_gap(stamps):", '    """Doc."""', "    ### BEGIN SOLUTION", "    return 1", "    ### END SOLUTION",
    "check.mean_gap(mean_gap)", "x = 1", "# words", "", "%%time", "!ls", "'''", "# %% answer='mean_gap", "# %% [",
    '# %% tags=["a"]', "# %% {}", "# ---", "# jupyter:", "# +", '# %% answer=["mean_gap"]', "# %% answer=null",
]  # fmt: skip


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=12), max_size=25))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_notebook_or_one_clear_error(home, lines):
    try:
        read = sources.parse("\n".join(lines), "90_demo")
    except LabkitError as error:
        assert "90_demo.py" in str(error)
    else:
        nbformat.validate(edition.learners(read))
