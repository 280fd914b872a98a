"""check, check.use, check.hint: what a learner reads, and that a pass is earned."""

import functools
import random
import re
import signal
import threading
import time

import pytest

from labkit import paths
from labkit.course import checks, exercises, progress, store
from labkit.course.checks import check
from labkit.course.exercise import CheckFailed, Exercise, NotAttempted, Wrong, expect
from labkit.course.limit import TooLong, time_limit
from labkit.course.scope import missing_when_graded
from labkit.course.verify import guarded, verify
from labkit.errors import LabkitError

pytest_plugins = ["course_home"]


def right(stamps):
    return sum(b - a for a, b in zip(stamps, stamps[1:], strict=False)) / (len(stamps) - 1)


def off_by_one(stamps):
    return (stamps[-1] - stamps[0]) / len(stamps)


def test_passing_prints_one_deterministic_line(home, capsys):
    lines = set()
    for _ in range(5):
        check.mean_gap(right)
        lines.add(capsys.readouterr().out)
    assert lines == {"✓ mean_gap: right.\n"}


def test_failing_names_input_property_cause_and_a_seed_that_reproduces(home):
    with pytest.raises(CheckFailed) as first:
        check.mean_gap(off_by_one)
    text = str(first.value)
    assert (
        "n stamps have n − 1 gaps" in " ".join(text.split())
        and "stamps = [" in text
        and 'check.hint("mean_gap")' in text
    )
    seed = int(re.search(r"seed=(\d+)", text).group(1))
    with pytest.raises(CheckFailed) as again:
        check.mean_gap(off_by_one, seed=seed)
    assert str(again.value) == text and again.value.key == "gap"
    with pytest.raises(CheckFailed) as other:
        check.mean_gap(off_by_one, seed=seed + 1)
    assert str(other.value) != text


def test_stub_is_not_attempted_but_another_not_implemented_is_a_failure(home):
    def stub(stamps):
        raise NotImplementedError()

    def torch_like(stamps):
        raise NotImplementedError("no kernel for this type")

    with pytest.raises(NotAttempted, match="hint"):
        check.mean_gap(stub)
    with pytest.raises(CheckFailed, match="no kernel"):
        check.mean_gap(torch_like)


def test_an_exception_shows_the_learners_lines_and_prints_only(home):
    def divides(stamps):
        print("looked at", len(stamps))
        nothing = 0
        return 1 / nothing

    with pytest.raises(CheckFailed) as failed:
        check.mean_gap(divides)
    text = str(failed.value)
    assert "ZeroDivisionError" in text and "return 1 / nothing" in text and "looked at" in text
    assert "verify.py" not in text and "check_mean_gap" not in text
    assert failed.value._render_traceback_() == text.splitlines()


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (lambda: 1.0, "signature"),
        (lambda stamps, more: 1.0, "signature"),
        (lambda stamps: None, "unusable"),
        (lambda stamps: "0.5 s", "unusable"),
        (lambda stamps: (0.5, "s"), "unusable"),
        (lambda stamps: float("nan"), "gap"),
        (lambda stamps: exit(), "raised"),
        (lambda stamps: stamps.index(10**5), "raised"),
        (functools.partial(off_by_one), "gap"),
    ],
)
def test_wrong_types_signatures_and_exits_are_told_in_words(home, answer, key):
    with pytest.raises(CheckFailed) as failed:
        check.mean_gap(answer, seed=3)
    assert failed.value.key == key
    assert not re.search(r"0x[0-9a-f]{6}", str(failed.value))
    assert all(len(line) <= 120 for line in str(failed.value).splitlines())


@pytest.mark.parametrize("value", [None, 3.0, [1.0], "mean_gap"])
def test_something_that_is_no_function(home, value):
    with pytest.raises(CheckFailed, match="not a function"):
        check.mean_gap(value)


def test_an_endless_recursion_is_short(home):
    def again(stamps):
        return again(stamps)

    with pytest.raises(CheckFailed) as failed:
        check.mean_gap(again)
    assert len(str(failed.value).splitlines()) < 15 and "RecursionError" in str(failed.value)


def test_an_interrupt_is_explained_and_stays_an_interrupt(home):
    def interrupted(stamps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="stopped by you"):
        check.mean_gap(interrupted)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm signal")
def test_what_does_not_come_back_is_stopped(home, capsys, monkeypatch):
    monkeypatch.setattr(checks, "LIMIT", 0.2)

    def endless(stamps):
        while True:
            try:
                stamps = [stamp + 1 for stamp in stamps]
            except Exception:
                pass

    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(CheckFailed, match=r"did not come back within 0\.2 s") as failed:
        check.mean_gap(endless)
    assert "never ends" in str(failed.value) and "seed=" in str(failed.value)
    assert store.read()["exercises"]["mean_gap"]["tries"] == 1
    assert check.use("mean_gap", endless) is exercises.find("mean_gap").reference
    check.mean_gap(right)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] == 0, "an alarm is left"


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm signal")
def test_an_alarm_that_was_set_before_still_rings():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TooLong), time_limit(0.1):
            while True:
                pass
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung


def test_where_nothing_can_be_stopped_the_check_runs_and_a_hint_says_what_to_press(home, capsys, monkeypatch):
    monkeypatch.setattr(checks, "can_limit", lambda: False)
    check.hint("mean_gap")
    assert "press ■" in capsys.readouterr().out
    others = []
    thread = threading.Thread(target=lambda: others.append(check.mean_gap(right)))
    thread.start()
    thread.join()
    assert others == [None]


def test_not_attempted_is_neutral_and_a_failure_is_plain(home):
    lines = NotAttempted("a\nlonger")._render_traceback_()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert plain == ["a     ", "longer"] and all(line.startswith("\x1b[") for line in lines)


def test_callables_are_called_by_their_names(home):
    def stumbles(call):
        return 1 / 0

    with pytest.raises(CheckFailed, match=r"Called with \(call\)"):
        check.twice(stumbles)


def test_labkits_own_function_is_refused(home):
    reference = exercises.find("mean_gap").reference

    @functools.wraps(reference)
    def wrapped(stamps):
        return reference(stamps)

    for answer in (reference, wrapped):
        with pytest.raises(CheckFailed, match="labkit's own(?s:.)*Run your own cell above again"):
            check.mean_gap(answer)


def test_changing_the_arguments_does_not_change_what_the_check_compares_with(home, capsys):
    def empties(stamps):
        result = right(stamps)
        stamps.clear()
        return result

    def in_place(values):
        return values.mul_(2)

    check.mean_gap(empties)
    check.doubled(in_place)


def test_callables_as_arguments_may_fail_the_check_through_the_answer(home):
    def thrice(call):
        return [call(1), call(2), call(3)][:2]

    def swapped(call):
        second = call(2)
        return [call(1), second]

    check.twice(lambda call: [call(1), call(2)])
    for wrong in (thrice, swapped):
        with pytest.raises(CheckFailed) as failed:
            check.twice(wrong)
        assert failed.value.key == "calls"


def test_unknown_names_suggest_the_nearest(home):
    with pytest.raises(AttributeError, match="mean_gap"):
        _ = check.mean_gop
    with pytest.raises(LabkitError, match="mean_gap"):
        check.hint("mean_gap_")
    assert not hasattr(check, "_ipython_canary_method_should_not_exist_")


def test_tab_completion_and_help(home):
    assert {"mean_gap", "twice", "hint", "use"} <= set(dir(check))
    from IPython.core.completer import IPCompleter, provisionalcompleter

    completer = IPCompleter(namespace={"check": check}, use_jedi=False)
    with provisionalcompleter():
        found = {completion.text for completion in completer.completions("check.me", 8)}
    assert ".mean_gap" in found or "mean_gap" in found
    assert "the mean gap" in check.mean_gap.__doc__


def test_hints_come_one_by_one_and_stay_at_the_last(home, capsys):
    for number in (1, 2, 3, 3):
        check.hint("doubled")
        said = capsys.readouterr().out
        assert f"Hint {number} of 3" in said
        assert ("last hint" in said) == (number == 3) and ("next one" in said) == (number < 3)
    check.hint("doubled", 1)
    assert "Hint 1" in capsys.readouterr().out
    with pytest.raises(LabkitError, match="hints 1 to 3"):
        check.hint("doubled", 4)
    assert store.read()["exercises"]["doubled"]["hints"] == 3


def test_long_hints_are_whole(home, capsys, monkeypatch):
    from labkit.course import texts

    long = "word " * 400 + "{braces} end"
    monkeypatch.setattr(texts, "exercise", lambda *_: texts.ExerciseTexts("t", ("a", "b", long), {}))
    check.hint("doubled", 3)
    assert long in capsys.readouterr().out


def test_only_the_end_of_what_is_printed_is_kept(home):
    def chatty(stamps):
        for number in range(30_000):
            print("line", number)
        raise ValueError("enough")

    answer = guarded(chatty)
    with pytest.raises(CheckFailed) as failed:
        verify(exercises.find("mean_gap"), answer, 0)
    assert "line 29999" in str(failed.value) and len(str(failed.value).splitlines()) < 20
    assert len(answer.printed) < 50_000


@pytest.mark.slow
def test_an_interrupted_check_in_a_kernel_is_short(home):
    """As the stop button does it: SIGINT while the learner's function runs for ever."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    source = """import os, signal, threading
import demo_exercises
from labkit.course import check
demo_exercises.install()
def mean_gap(stamps):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        pass
check.mean_gap(mean_gap)"""
    client = NotebookClient(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), timeout=60)
    with pytest.raises(CellExecutionError):
        client.execute()
    (error,) = client.nb.cells[0].outputs
    assert error.ename == "Stopped" and "loop" in "".join(error.traceback) and len(error.traceback) < 6


def test_use_takes_a_right_function_and_falls_back_from_any_other(home, capsys):
    assert check.use("mean_gap", right) is right
    assert capsys.readouterr().out == ""

    def stub(stamps):
        raise NotImplementedError()

    def interrupted(stamps):
        raise KeyboardInterrupt

    reference = exercises.find("mean_gap").reference
    for answer in (off_by_one, stub, interrupted, None, 3, reference, lambda: 1, lambda stamps: object()):
        assert check.use("mean_gap", answer) is reference
        assert "labkit's own" in capsys.readouterr().out


def test_use_survives_a_check_that_stumbles(home, capsys):
    def broken(answer, rng):
        raise OSError("the check's own fault")

    exercises.add([Exercise("fragile", "90_demo", "core", 1, 1, broken, len)])
    assert check.use("fragile", right) is len
    with pytest.raises(OSError, match="own fault"):
        verify(exercises.find("fragile"), guarded(right), 0)


def test_use_does_not_check_again_what_just_passed(home, monkeypatch):
    check.mean_gap(right)
    monkeypatch.setattr(checks, "verify", lambda *_: pytest.fail("checked twice"))
    assert check.use("mean_gap", right) is right


def test_what_needs_a_gpu_is_open_without_one_and_never_passed(home, capsys, monkeypatch):
    needy = Exercise("needy", "90_demo", "core", 1, 1, lambda answer, rng: None, len, frozenset({"cuda"}))
    exercises.add([needy])
    monkeypatch.setattr(checks, "available", lambda needs: not needs)
    checks.check._run(needy, right, None)
    assert "open, not as passed" in capsys.readouterr().out
    assert "needy" not in store.read()["exercises"]


def test_a_pass_is_remembered_and_a_later_failure_does_not_undo_it(home):
    with pytest.raises(CheckFailed):
        check.mean_gap(off_by_one)
    check.mean_gap(right)
    with pytest.raises(CheckFailed):
        check.mean_gap(off_by_one)
    part = progress.report(["90_demo"]).notebooks[0]
    assert part.points == (2, 6) and part.count("core") == (1, 2) and part.count("extra") == (0, 1)
    line = next(line for line in part.lines if line.exercise.name == "mean_gap")
    assert line.passed and line.tries == 2
    assert part.minutes("core") == sum(
        one.exercise.minutes for one in part.lines if one.exercise.level == "core"
    )
    assert f"core ones takes about {part.minutes('core')} min" in str(progress.report(["90_demo"]))
    assert "✓ mean_gap" in str(progress.report(["90_demo"]))


def test_names_that_the_grader_lacks_are_warned_about(home, capsys):
    check.mean_gap(from_elsewhere(paths.notebooks()))
    warned = capsys.readouterr().err
    assert "`OFFSET`" in warned and "`helper`" in warned and "`labkit.errors`" in warned
    assert "`inner`" not in warned and "`first`" not in warned and "__name__" not in warned
    assert "`math`" not in warned and "`zip`" not in warned


def from_elsewhere(notebooks):
    """Functions as a notebook's cells define them: an answer that leans on another cell, and on labkit."""
    import linecache

    notebooks.mkdir(exist_ok=True)
    cells = {
        "<cell 1>": "OFFSET = 0\ndef helper(x):\n    return x\n",
        "<cell 2>": (
            "import math\n"
            "class Kept:\n    last = 0\n    def add(self, x):\n        return x + OFFSET\n"
            "def local(x):\n    class Inside:\n        first = 0\n        second = first\n"
            "    return x + Inside.second\n"
            "def inner(stamps):\n    return [local(helper(b - a)) for a, b in zip(stamps, stamps[1:])]\n"
            "def mean_gap(stamps):\n    import labkit.errors\n"
            "    return math.fsum(Kept().add(x) for x in inner(stamps)) / (len(stamps) - 1)\n"
        ),
    }
    names = {}
    for name, source in cells.items():
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), names)
    return names["mean_gap"]


def test_an_answer_that_stands_alone_is_not_warned_about(home, capsys):
    check.mean_gap(right)
    assert capsys.readouterr().err == ""
    assert missing_when_graded(functools.partial(right), "90_demo") == {}


def test_expect_treats_nan_as_wrong():
    with pytest.raises(Exception, match="close"):
        expect(abs(float("nan") - 1.0) < 1e-6, "close")


def test_inputs_are_fresh_each_time(home):
    seen = []

    def notes(stamps):
        seen.append(tuple(stamps))
        return right(stamps)

    check.mean_gap(notes)
    check.mean_gap(notes)
    assert len(set(seen)) > 30
    first = list(seen)
    seen.clear()
    check.mean_gap(notes, seed=5)
    again, seen[:] = list(seen), []
    random.seed(1)
    check.mean_gap(notes, seed=5)
    assert seen == again and not set(seen) & set(first)


@pytest.mark.parametrize(
    "value", [iter([1.0]), {1.0}, range(3), object()], ids=lambda value: type(value).__name__
)
def test_what_the_grader_would_not_receive_is_wrong_here_too(value: object) -> None:
    with pytest.raises(Wrong) as caught:
        guarded(lambda: [value])()
    assert caught.value.key == "unplain" and type(value).__name__ in caught.value.fields["returned"]
