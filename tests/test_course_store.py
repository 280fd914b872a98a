"""Progress, predictions and the ledger: kept, shared between kernels, never lost."""

import json
import multiprocessing
import os
import random
import re

import pytest

from labkit import paths
from labkit.course import exercises, ledger, predict, progress, store
from labkit.course.display import Table
from labkit.course.ledger_picture import picture
from labkit.course.predictions import quantity
from labkit.errors import LabkitError

pytest_plugins = ["course_home"]


def add_many(prefix, count):
    for number in range(count):
        store.update(
            lambda content, key=f"{prefix}{number}": content["predictions"].update({key: {"value": 1}})
        )


def test_two_kernels_writing_at_once_lose_nothing(home):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_many, args=(prefix, 25)) for prefix in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(store.read()["predictions"]) == 75
    assert [path.name for path in paths.state().iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"exercises": []}',
        b'{"ledger": {}}',
        b'{"exercises": {"a": 1}}',
    ],
)
def test_a_damaged_file_is_moved_aside_and_said(home, capsys, content):
    store.file().parent.mkdir(parents=True)
    store.file().write_bytes(content)
    assert store.read()["exercises"] == {}
    predict("x", 3)
    assert predict.compare("x", 4) is None
    aside = list(paths.state().glob("progress-damaged-*.json"))
    assert len(aside) == 1 and aside[0].read_bytes() == content
    assert aside[0].name in capsys.readouterr().err


def test_two_damaged_files_in_one_second_are_both_kept(home):
    for number in range(3):
        store.update(lambda content: None)
        store.file().write_text(f"broken {number}")
        store.read()
    kept = {path.read_text() for path in paths.state().glob("progress-damaged-*.json")}
    assert kept == {"broken 0", "broken 1", "broken 2"}


def test_fields_of_a_newer_version_survive(home):
    store.file().parent.mkdir(parents=True)
    store.file().write_text(
        json.dumps({"version": 9, "badges": [1], "exercises": {"mean_gap": {"passed": "now", "x": 1}}})
    )
    predict("x", 3)
    content = json.loads(store.file().read_text())
    assert content["badges"] == [1] and content["exercises"]["mean_gap"]["x"] == 1


def test_a_folder_that_cannot_be_written_costs_a_notice_only(home, monkeypatch, capsys):
    blocked = home / "blocked"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("LABKIT_WORK", str(blocked))
    progress.remember(exercises.find("mean_gap"), passed=True)
    predict("x", 3)
    assert "could not save" in capsys.readouterr().err


def test_an_interrupted_write_leaves_the_old_file(home, monkeypatch):
    predict("x", 3)
    before = store.file().read_bytes()

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    predict("x", 4)
    assert store.file().read_bytes() == before
    assert not list(paths.state().glob(".progress*"))


def test_predictions_are_kept_compared_and_may_stay_blank(home, capsys):
    predict("tpot", None, "ms")
    predict.compare("tpot", 20.0, "ms")
    assert "no guess" in capsys.readouterr().out
    predict("tpot", 10, "ms")
    predict("tpot", None, "ms")  # a blank keeps what was said before
    predict.compare("tpot", 31.4)
    said = capsys.readouterr().out
    assert "10 ms" in said and "31.4 ms" in said and "3.14× too low" in said and "[measured here]" in said
    predict.compare("tpot", 9.5)
    assert "within 20 %" in capsys.readouterr().out


def test_shares_are_compared_in_points_and_several_in_one_table(home, capsys):
    predict("share", 60, "%")
    for measured, verdict in (
        (99.4, "39 points too low"),
        (20, "40 points too high"),
        (61, "within 2 points"),
    ):
        predict.compare("share", measured, "%")
        assert verdict in capsys.readouterr().out
    predict("first", 100, "ms")
    predict.compare({"first": 250.0, "next": 4.5}, "ms")
    said = capsys.readouterr().out
    assert "2.5× too low" in said and "4.5 ms" in said and "no guess" in said
    assert said.count("quantity") == 1, "one table has one headline"


def test_a_prediction_in_another_unit_is_converted_or_refused(home, capsys):
    predict("ttft", 0.2, "s")
    predict.compare("ttft", 400.0, "ms")
    said = capsys.readouterr().out
    assert "200 ms" in said and "2× too low" in said
    predict("share", 0.5)
    with pytest.raises(LabkitError, match="no unit"):
        predict.compare("share", 50.0, "%")


@pytest.mark.parametrize("value", ["12 ms", True, float("nan"), float("inf"), [1], object()])
def test_a_prediction_is_a_finite_number(home, value):
    with pytest.raises(LabkitError, match="number"):
        predict("x", value)


def test_quantity_keeps_three_figures():
    rng = random.Random(3)
    for _ in range(300):
        value = rng.uniform(1, 10) * 10 ** rng.randint(-9, 12)
        text = quantity(value, "s")
        assert text.endswith(" s")
        assert abs(float(text[:-2].replace(",", "")) - value) <= 0.006 * value
    assert quantity(0.0, "ms") == "0 ms" and quantity(12400.0) == "12,400" and quantity(-0.5) == "-0.5"


def test_the_empty_ledger_says_what_comes(home, capsys):
    ledger.show()
    said = capsys.readouterr().out
    assert "No rung of your own" in said and "None" not in said and "–" not in said


def test_rungs_are_kept_replaced_in_place_and_drawn_with_the_recorded_ladder(home, capsys):
    ledger.add("plain model", model="labcoder", device="CPU", ttft=0.35, tpot=0.006, memory=28e6)
    ledger.add(
        "int8 weights", model="labcoder", device="CPU", ttft=0.30, tpot=0.004, memory=15e6, quality=0.91
    )
    ledger.add("plain model", model="labcoder", device="CPU", ttft=0.40, tpot=0.007, memory=28e6)
    mine = ledger.rungs()
    assert [rung.name for rung in mine] == ["plain model", "int8 weights"] and mine[0].ttft == 0.40
    path = ledger.record(
        "plain model", model="labcoder@7b", ttft=0.02, tpot=0.0125, throughput=80.0, memory=13.5e9
    )
    ledger.record("paged cache", model="labcoder@7b", tpot=0.01)
    theirs = ledger.recorded(path.parent.name)
    assert [rung.name for rung in theirs] == ["plain model", "paged cache"]
    assert re.match(r"recorded on .+, \d{4}-\d\d-\d\d", theirs[0].badge)
    table = ledger.table(mine, theirs)
    assert "13.5 GB" in str(table) and "15 MB" in str(table) and "cost" not in table.headers
    drawn = picture(mine, theirs)
    assert [axes.get_xlabel() for axes in drawn.axes] == ["TTFT [ms]", "TPOT [ms]"]
    assert len(drawn.axes[0].get_yticklabels()) == 4
    # the recorded ladder first, then one's own, each read downwards and marked off
    assert [row[0] for row in table.rows] == ["plain model", "paged cache", "plain model", "int8 weights"]
    assert "compare within one" in str(table)
    assert "compare within one" not in str(ledger.table(mine, ()))
    assert "compare within one" not in str(ledger.table(theirs, theirs))
    ledger.show()
    assert "int8 weights" in capsys.readouterr().out


def test_the_ledger_takes_known_finite_figures_only(home):
    with pytest.raises(LabkitError, match="latency"):
        ledger.add("x", model="m", device="d", latency=1.0)
    with pytest.raises(LabkitError, match="nan"):
        ledger.add("x", model="m", device="d", ttft=float("nan"))
    with pytest.raises(LabkitError, match="name"):
        ledger.add(" ", model="m", device="d")


def test_a_table_escapes_and_lines_up():
    table = Table(["a<b", "n"], [["<script>", 3], ["longer than it", 12345]], "x & y")
    html = table._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "x &amp; y" in html
    assert len({len(line) for line in str(table).splitlines()[1:]}) == 1
