"""The repository as a whole: nothing of the machine it was written on, and a size that a learner can read."""

import re
import subprocess
import tempfile
from pathlib import Path

import checksums
import pytest
import rooms

ROOT = Path(__file__).resolve().parent.parent
PERSONAL = re.compile(
    r"(/home/|/Users/|[A-Z]:\\+Users\\+)(?!(you|me|learner|NAME)\b)\w+|/root/\w|file:///|/tmp/\w"
)
INVENTED = {"tests/test_build.py"}  # holds made-up paths, to show that the builder refuses them
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".ipynb",
    ".json",
    ".yml",
    ".yaml",
    ".lock",
    ".txt",
    ".cfg",
    ".csv",
    ".html",
    "",
}


def tracked() -> list[Path]:
    """The files that git keeps."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of tracked files")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def own_places() -> list[str]:
    """Folders of this very machine; short ones such as / say nothing."""
    places = {str(ROOT), str(ROOT.parent), str(Path.home()), tempfile.gettempdir()}
    return [f"{place}/" for place in places if place.count("/") > 1]


def test_no_tracked_file_names_a_machine() -> None:
    found = []
    for path in tracked():
        invented = path == Path(__file__).resolve() or path.relative_to(ROOT).as_posix() in INVENTED
        if path.suffix not in TEXT or invented:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            named = PERSONAL.search(line) or next((place for place in own_places() if place in line), None)
            if named:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_tracked_files_stay_small_enough_to_clone() -> None:
    large = [f"{path.relative_to(ROOT)}: {path.stat().st_size / 2**20:.1f} MiB" for path in tracked()
             if path.stat().st_size > 15 * 2**20]  # fmt: skip
    assert not large, large


def test_the_package_and_its_files_stay_short(capsys: pytest.CaptureFixture[str]) -> None:
    code = rooms.main()
    with capsys.disabled():
        print(f"\n{capsys.readouterr().out}")
    assert code == 0


def test_a_long_file_is_named_and_code_counts_apart(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "long.py").write_text("x = 1\n" * 300)
    (tmp_path / "short.py").write_text(
        '"""Why."""\n\n# how\ntext = """two\nlines"""  # here\n\n\ndef f():\n    "doc"\n    return 1\n'
    )
    counted, too_long = rooms.count(tmp_path)
    assert counted == {"room": (300, 300), "short.py": (10, 4)}
    assert len(too_long) == 1 and "long.py" in too_long[0] and "300" in too_long[0]


def test_the_checksums_are_those_of_the_embedded_models() -> None:
    wanted = checksums.lines(ROOT / "data")
    written = (ROOT / "data" / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert written == wanted, "an embedded model has changed: `make sums`"
    assert {line.split("/")[0].split()[1] for line in wanted} == set(checksums.MODELS)
    assert sum(line.endswith(".safetensors") for line in wanted) >= len(checksums.MODELS)
