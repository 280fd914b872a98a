"""The command line: quick to answer, one message for a user's mistake, and every command there."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.errors import LabkitError

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"doctor", "lab", "reset", "grade", "progress", "build", "eval", "bench"}


def labkit(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m labkit` as a person would."""
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "100", **environment},
    )  # fmt: skip


def seconds_of_processor(*command: str) -> float:
    """The least processor time of three runs: what the command costs, whatever else the machine is doing."""
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


def test_importing_labkit_is_light() -> None:
    code = "import sys, labkit; print([name for name in ('torch', 'transformers', 'typer') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    assert seconds_of_processor("-c", "import labkit") < 0.3


def test_help_answers_at_once() -> None:
    assert seconds_of_processor("-m", "labkit", "--help") < 0.5


def test_help_lists_every_command_and_no_other() -> None:
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    assert names == COMMANDS
    shown = labkit("--help").stdout
    for name in COMMANDS:
        assert f"│ {name} " in shown
        assert labkit(name, "--help").returncode == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("bench", "nothing-of-the-kind"), "no benchmark"),
        (("grade", "a.ipynb", "--json", "--csv"), "exclude"),
        (("reset", "99_never"), "no notebook"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = labkit(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr and not done.stdout
    assert len(done.stderr.strip().splitlines()) <= 3


def test_an_unknown_command_or_option_is_a_mistake_too() -> None:
    for arguments in (("serf",), ("lab", "--port", "0"), ("lab", "--nonsense")):
        done = labkit(*arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_remedy_follows_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.stop(LabkitError("The kettle [is] cold.", "Heat it."))
    assert ended.value.code == 2
    assert capsys.readouterr().err == "labkit: The kettle [is] cold.\nHeat it.\n"


def test_a_benchmark_ends_in_json_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit import results
    from labkit.profile import bench

    monkeypatch.setattr(bench, "run", lambda model, device: print('{"bench": "profile"}') or {})
    monkeypatch.setattr(results, "record", lambda name, figures, device: Path("there.json"))
    done = CliRunner().invoke(cli.app, ["bench", "profile"])
    assert done.exit_code == 0 and "recorded: there.json" in done.stderr
    assert done.stdout == '{"bench": "profile"}\n'


def test_parts_of_a_benchmark_are_chosen_where_it_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit import results
    from labkit.batch import bench_fuse

    asked: list[str] = []
    monkeypatch.setattr(bench_fuse, "run", lambda model, device, only="": asked.append(only) or {})
    monkeypatch.setattr(results, "record", lambda name, figures, device: Path(f"{name}.json"))
    for arguments in (["fuse"], ["fuse", "--only", "ladder,kernels"]):
        done = CliRunner().invoke(cli.app, ["bench", *arguments])
        assert done.exit_code == 0 and "recorded: fuse.json" in done.stderr
    assert asked == ["", "ladder,kernels"]
    refused = CliRunner().invoke(cli.app, ["bench", "profile", "--only", "ladder"])
    assert isinstance(refused.exception, LabkitError) and "no parts" in refused.exception.what


def test_exit_codes_of_grade_and_build_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.course import build, grading

    seen: list[object] = []
    for code in (0, 1, 2, 3):
        monkeypatch.setattr(
            grading, "grade", lambda files, style, code=code, **_: seen.append((files, style)) or code
        )
        done = CliRunner().invoke(cli.app, ["grade", "one.ipynb", "two.ipynb", "--csv"])
        assert done.exit_code == code
    assert seen[0] == ([Path("one.ipynb"), Path("two.ipynb")], "csv")
    monkeypatch.setattr(
        build, "build", lambda names, check, execute: seen.append((names, check, execute)) or 1
    )
    assert CliRunner().invoke(cli.app, ["build", "01", "--check"]).exit_code == 1
    assert seen[-1] == (["01"], True, None)
