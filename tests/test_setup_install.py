"""The set-up is done once: what the stamp remembers, and what starts it again."""

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import install
import interpreter
import pytest
import torch_build
from install import COURSE, STAMP, TOOLS, Environment, ensure, plan
from interpreter import Python, Stop

ROOT = Path(__file__).resolve().parent.parent
HERE = Python(sys.executable, tuple(sys.version_info[:3]), True)
OTHER = Python("/usr/bin/python3.99", (3, 12, 99), True)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the course's set-up files, and an installer that only notes what it was asked for."""
    root = tmp_path / "course"
    root.mkdir()
    for name in (COURSE, TOOLS, "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    monkeypatch.setattr(interpreter, "choose", lambda wanted="": OTHER if wanted else HERE)
    monkeypatch.setattr(interpreter, "probe", lambda command: HERE)
    monkeypatch.setattr(torch_build, "driver_version", lambda system: 0)
    monkeypatch.setattr(torch_build, "pip_offers", lambda python: lambda requirement: True)
    monkeypatch.setattr(torch_build, "check_installed", lambda python, build: None)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: SimpleNamespace(free=9e12))
    monkeypatch.setattr(Environment, "pip_install", lambda self, *arguments: pips.append(arguments) or 0)
    monkeypatch.setattr(install.subprocess, "run", make_venv)
    pips.clear()
    venvs.clear()
    return root


pips: list[tuple[str, ...]] = []
venvs: list[list[str]] = []


def make_venv(command: list[str]) -> object:
    """Stands in for `python -m venv --clear FOLDER`."""
    assert command[1:4] == ["-m", "venv", "--clear"], command
    venvs.append(command)
    folder = Path(command[4])
    shutil.rmtree(folder, ignore_errors=True)
    place = Environment(folder.parent)
    place.binaries.mkdir(parents=True)
    place.python.write_text("")
    (folder / "pyvenv.cfg").write_text(f"command = python -m venv {folder}\n")
    return SimpleNamespace(returncode=0)


def test_the_second_run_does_nothing_and_is_instant(course: Path) -> None:
    assert ensure(course, "", "", dev=False)
    done = len(pips)
    started = time.process_time()
    assert not ensure(course, "", "", dev=False)
    assert time.process_time() - started < 0.5
    assert len(pips) == done and len(venvs) == 1


def test_tools_come_when_asked_for_and_stay_current(course: Path) -> None:
    ensure(course, "", "", dev=False)
    assert not any(TOOLS in " ".join(arguments) for arguments in pips)
    pips.clear()
    assert ensure(course, "", "", dev=True)
    assert len(pips) == 1 and TOOLS in " ".join(pips[0])  # the course itself is not installed again
    assert not ensure(course, "", "", dev=True) and not ensure(course, "", "", dev=False)
    (course / TOOLS).write_text("ruff==0.0.1\n")
    assert ensure(course, "", "", dev=False)
    assert len(venvs) == 1


@pytest.mark.parametrize("name", [COURSE, "pyproject.toml"])
def test_a_changed_source_is_installed_over_the_old_one(course: Path, name: str) -> None:
    ensure(course, "", "", dev=True)
    pips.clear()
    (course / name).write_text((course / name).read_text() + "# newer\n")
    assert ensure(course, "", "", dev=True)
    assert len(venvs) == 1 and any(COURSE in " ".join(arguments) for arguments in pips)
    assert not ensure(course, "", "", dev=True)


def test_line_ends_alone_change_nothing(course: Path) -> None:
    ensure(course, "", "", dev=False)
    lock = course / COURSE
    lock.write_bytes(lock.read_bytes().replace(b"\n", b"\r\n"))
    assert not ensure(course, "", "", dev=False)


def test_another_torch_python_or_folder_starts_afresh(course: Path, tmp_path: Path) -> None:
    ensure(course, "", "", dev=True)
    assert ensure(course, "cuda", "", dev=True) and len(venvs) == 2
    assert any("!=2.13.0+cpu" in " ".join(arguments) for arguments in pips)
    assert not ensure(course, "", "", dev=True), "without TORCH the earlier choice stays"
    assert ensure(course, "cuda", "elsewhere", dev=True) and len(venvs) == 3
    assert json.loads((course / ".venv" / STAMP).read_text())["python"] == OTHER.release
    moved = tmp_path / "moved"
    course.rename(moved)
    assert ensure(moved, "", "", dev=True) and len(venvs) == 4
    assert not ensure(moved, "", "", dev=True)


def test_an_interrupted_set_up_does_not_look_complete(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(course, "", "", dev=False)
    (course / COURSE).write_text((course / COURSE).read_text() + "# newer\n")
    with monkeypatch.context() as broken:
        broken.setattr(Environment, "pip_install", lambda self, *arguments: int("-r" in arguments))
        with pytest.raises(Stop, match="run it again"):
            ensure(course, "", "", dev=False)
    assert not (course / ".venv" / STAMP).exists()
    assert ensure(course, "", "", dev=False)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_a_spoilt_stamp_is_no_stamp(course: Path, text: str) -> None:
    ensure(course, "", "", dev=False)
    (course / ".venv" / STAMP).write_text(text)
    todo = plan(Environment(course), "", "", False)
    assert todo.course and todo.fresh is None  # the environment itself is sound: keep it


def test_it_says_what_it_will_download_before_it_does(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ensure(course, "cpu", "", dev=True)
    said = capsys.readouterr().out
    assert "cpu build" in said and "2.13.0" in said and said.count(" MB") >= 4
    assert said.index("MB to download") < said.index("torch from")


def test_too_little_disk_stops_before_anything_is_made(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(Stop, match=r"1\.0 GB are free"):
        ensure(course, "", "", dev=False)
    assert not pips and not venvs
