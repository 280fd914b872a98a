"""Records: what is written comes back, with what is needed to repeat it; a NaN is not a figure."""

import json
import subprocess
from dataclasses import dataclass

import pytest
import torch

from labkit import results
from labkit.errors import LabkitError
from labkit.timing import Measurement


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["/somewhere/else/labkit", "bench", "profile"])
    return tmp_path


@dataclass(frozen=True)
class Inner:
    name: str
    runs: tuple[Measurement, ...]


def test_a_record_comes_back_with_every_repeat(home):
    figures = {"a": Inner("x", (Measurement((0.1, 0.3)),)), "t": torch.tensor([1.5, 2.0]), 64: None}
    path = results.record("profile", figures, device_slug="nvidia-h200", device="cpu")
    assert path == home / "data/results/nvidia-h200/profile.json"
    entry = results.load("profile")
    assert entry["figures"] == {
        "a": {"name": "x", "runs": [{"seconds": [0.1, 0.3]}]}, "t": [1.5, 2.0], "64": None,
    }  # fmt: skip
    assert entry["command"] == "labkit bench profile"
    assert {"commit", "dirty", "date", "device", "versions", "badge"} <= set(entry)
    assert entry["badge"] == f"recorded on {entry['device']}, {entry['date']}"
    assert str(home) not in path.read_text()
    assert not list(path.parent.glob("*.partial"))


def test_what_was_never_recorded_is_none(home):
    assert results.load("profile", "nvidia-h100") is None


def test_the_device_names_the_folder(home):
    path = results.record("x", {}, device="cpu")
    assert path.parent.name.startswith("cpu") and path.parent.name == results.slugify(
        results.device_name("cpu")
    )
    assert results.slugify("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize("figure", [float("nan"), [1.0, float("inf")], {"deep": (float("nan"),)}, object()])
def test_no_figure_no_record(home, figure):
    with pytest.raises(LabkitError):
        results.record("profile", {"x": figure}, device="cpu")
    assert not list(home.rglob("*.json"))


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_a_record_stays_in_its_folder(home, name):
    with pytest.raises(LabkitError):
        results.record(name, {}, device="cpu")
    with pytest.raises(LabkitError):
        results.load(name)


def test_a_broken_record_says_how_to_mend_it(home):
    path = results.record("profile", {}, device_slug="nvidia-h200", device="cpu")
    path.write_text("{")
    with pytest.raises(LabkitError, match="labkit bench profile"):
        results.load("profile")


def test_the_commit_and_whether_the_tree_differs(home):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=home, check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-q")
    (home / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")

    def recorded():
        return json.loads(results.record("x", {}, device="cpu").read_text())

    assert len(recorded()["commit"]) == 40
    assert recorded()["dirty"] is False  # the record written a moment ago does not count
    (home / "file").write_text("2")
    assert recorded()["dirty"] is True


def test_a_copied_tree_may_name_its_commit(home, monkeypatch):
    monkeypatch.setenv("LABKIT_COMMIT", "abc123")
    entry = json.loads(results.record("x", {}, device="cpu").read_text())
    assert (entry["commit"], entry["dirty"]) == ("abc123", None)


def test_measured_here():
    assert results.badge() == "measured here"
