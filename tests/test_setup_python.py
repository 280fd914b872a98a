"""Which Python the set-up script picks, and what it says when none fits."""

import ast
import random
import re
import tomllib
from pathlib import Path

import interpreter
import pytest
from interpreter import Python, Stop, choose

ROOT = Path(__file__).resolve().parent.parent


def machine(*pythons: Python):
    """A fake machine: commands found on it, in the order they are tried."""
    commands = {f"python-{index}": python for index, python in enumerate(pythons)}
    return {
        "look": lambda command: commands.get(command[0]),
        "names": lambda: ([name] for name in [*commands, "absent"]),
    }


def python(minor: int, *, venv: bool = True, major: int = 3) -> Python:
    return Python(f"/usr/bin/python{major}.{minor}", (major, minor, 4), venv)


def test_the_range_is_that_of_the_package() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (_, oldest), (major, newest) = interpreter.OLDEST, interpreter.NEWEST
    assert wanted == f">=3.{oldest},<{major}.{newest + 1}"


def test_the_first_python_that_fits_is_taken() -> None:
    seed = random.randrange(10_000)
    rng = random.Random(seed)
    for _ in range(200):
        there = [python(rng.randint(6, 16), venv=rng.random() < 0.7) for _ in range(rng.randint(1, 6))]
        good = [one for one in there if 11 <= one.version[1] <= 13 and one.can_venv]
        if good:
            assert choose(**machine(*there)) == good[0], f"seed {seed}: {there}"
        else:
            with pytest.raises(Stop):
                choose(**machine(*there))


@pytest.mark.parametrize("there", [[python(10)], [python(14)], [python(7, major=2)], []])
def test_no_fitting_python_says_what_was_found_and_what_is_needed(there: list[Python]) -> None:
    with pytest.raises(Stop) as stopped:
        choose(**machine(*there))
    text = str(stopped.value)
    assert "3.11 to 3.13" in text and "PYTHON=" in text
    for one in there:
        assert one.release in text and one.path in text


def test_a_python_without_venv_names_the_package_that_brings_it() -> None:
    with pytest.raises(Stop, match=r"apt-get install python3\.12-venv"):
        choose(**machine(python(9), python(12, venv=False)))


def test_the_variable_python_is_obeyed_or_refused_never_replaced() -> None:
    fitting, old = python(12), python(9)
    look = {"mine": fitting, "old": old, "bare": python(11, venv=False)}
    found = choose("mine", look=lambda command: look.get(command[0]), names=lambda: ([],))
    assert found == fitting
    for name, words in (("old", "3.9.4"), ("absent", "does not run"), ("bare", "virtual environments")):
        with pytest.raises(Stop, match=re.escape(words)):
            choose(name, look=lambda command: look.get(command[0]), names=lambda: (["mine"],))


def test_the_probe_reports_this_python_and_survives_what_is_none(tmp_path: Path) -> None:
    import sys

    found = interpreter.probe([sys.executable])
    assert found is not None and found.version == tuple(sys.version_info[:3])
    assert not Path(found.path).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
    assert interpreter.probe([str(tmp_path / "nothing")]) is None
    assert interpreter.probe(["git"]) is None


def test_scripts_can_be_read_by_pythons_that_they_must_turn_away() -> None:
    for path in (ROOT / "scripts").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
