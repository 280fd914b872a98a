"""What `make` calls: the tasks of scripts/setup.py, and the documents that send people there."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import install
import pytest
import setup as tasks
from install import Environment

from labkit import cli

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class Runs:
    """Notes every `python -m …` and answers with the codes it was given."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.seen: list[tuple[str, ...]] = []

    def __call__(self, place: Environment, *module: str, learner: bool = False) -> int:
        self.seen.append(module)
        return self.codes.get(module[1] if module[0] == "labkit" else module[0], 0)


@pytest.fixture
def place(tmp_path: Path) -> Environment:
    """An environment that is set up, as far as its stamp says."""
    found = Environment(tmp_path)
    found.binaries.mkdir(parents=True)
    found.python.write_text("")
    found.write_stamp({"python": "3.11.7"})
    return found


def test_the_doctor_is_asked_until_it_has_passed_once(
    place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, asked in ((1, True), (0, True), (0, False)):
        runs = Runs(doctor=code)
        monkeypatch.setattr(tasks, "run", runs)
        assert tasks.lab(place, ["--no-browser"]) == 0
        assert (("labkit", "doctor") in runs.seen) == asked
        assert runs.seen[-1] == ("labkit", "lab", "--no-browser"), (
            "what is broken must not lock a learner out"
        )


def test_the_servers_exit_code_is_passed_on(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "run", Runs(lab=2))
    assert tasks.lab(place, []) == 2


def test_no_test_at_all_is_not_a_pass(
    place: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for code in (0, 1, 5):
        monkeypatch.setattr(tasks, "run", Runs(pytest=code))
        assert tasks.tests(place, "slow", ["-q"]) == code
    assert "not a pass" in capsys.readouterr().out


def test_every_check_runs_and_any_failure_fails(
    place: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[list[str]] = []

    def quiet(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        others.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(tasks.subprocess, "run", quiet)
    for failing in ("ruff", "mypy"):
        runs = Runs(**{failing: 1})
        monkeypatch.setattr(tasks, "run", runs)
        assert tasks.check(place) == 1
        assert {module[0] for module in runs.seen} == {"ruff", "mypy"} and len(others) % 2 == 0
        assert f"({failing})" in capsys.readouterr().out
    monkeypatch.setattr(tasks, "run", Runs())
    assert tasks.check(place) == 0


def test_a_learners_choices_reach_the_lab_and_not_the_tests(
    place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def note(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("LABKIT_MODEL", "labcoder@7b")
    monkeypatch.setattr(tasks.subprocess, "run", note)
    tasks.run(place, "pytest")
    tasks.run(place, "labkit", "lab", learner=True)
    assert "LABKIT_MODEL" not in seen[0] and seen[1]["LABKIT_MODEL"] == "labcoder@7b"


def test_tests_bring_their_tools_and_the_lab_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, bool] = {}
    for task in ("lab", "install", "test", "test-slow", "check"):
        monkeypatch.setattr(install, "ensure", lambda *_, dev, task=task: asked.update({task: dev}))
        monkeypatch.setattr(tasks, "run", Runs())
        monkeypatch.setattr(tasks, "lab", lambda *_: 0)
        monkeypatch.setattr(tasks, "check", lambda *_: 0)
        assert tasks.main([task]) == 0
    assert asked == {"lab": False, "install": False, "test": True, "test-slow": True, "check": True}


def test_a_failed_check_fails_the_test_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(install, "ensure", lambda *_, dev: False)
    monkeypatch.setattr(tasks, "run", runs)
    monkeypatch.setattr(tasks, "check", lambda *_: 1)
    assert tasks.main(["test"]) == 1 and runs.seen[0][0] == "pytest"


def test_an_unknown_task_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks.main(["serve"]) == 2 and tasks.main([]) == 2 and tasks.main(["--help"]) == 0
    assert "test-slow" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_hands_over_its_variables() -> None:
    ours = ("TORCH", "PYTHON", "ARGS")  # and what a make around this test hands down
    clean = {key: value for key, value in os.environ.items() if key not in ours and "MAKE" not in key}
    command = ["make", "-n", "lab", "ARGS=--no-browser", "TORCH=cpu"]
    said = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True).stdout
    assert 'TORCH="cpu"' in said and said.strip().endswith("scripts/setup.py lab --no-browser")
    said = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, env={**clean, "PYTHON": "mine"}, capture_output=True, text=True
    )
    assert 'PYTHON="mine" "mine" scripts/setup.py test' in said.stdout


def test_ci_runs_both_and_stops_at_a_failure() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in text and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert text.rstrip().endswith("make test\nmake test-slow")
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_what_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    commands = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    targets = set(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    assert not set(re.findall(r"\blabkit (?!import\b)([a-z]+)\b", code)) - commands
    assert not set(re.findall(r"\bmake ([a-z-]+)", code)) - known
    assert not set(re.findall(r"setup\.py ([a-z-]+)", code)) - {
        "lab",
        "install",
        "test",
        "test-slow",
        "check",
        "lock",
    }
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / link).exists(), link
    for variable in re.findall(r"\bLABKIT_[A-Z_]+", text):
        sources = [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
        assert any(variable in path.read_text(encoding="utf-8") for path in sources), variable
