"""The fixed evaluation text: unchanged, correct Python, and without repeated passages."""

import doctest
import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "data" / "evaltext"
MODULES = sorted(FOLDER.glob("*.py"))
SHA256 = "0a193dddf45f025ef729afb4a7440f46ecbb5adc6b42f9ca1bf7ee81f12c272b"

# What some of the modules' demonstrations must come to; the others only have to run.
OUTCOMES = {
    "02_recipe_scaling": ["1 cup flour", "3/4 cup milk", "1 egg", "1/2 tablespoon sugar", "a little butter"],
    "08_roots": ("newton", True),
    "09_tram_network": (18, 3, 9, None, ["Market", "Museum", "Station"]),
    "13_query_builder": (["Volume 7", "Volume 6", "Volume 5"], ["C"], 1),
    "14_seedbank": [0, 0, 0, 0, 1],
    "15_chess_clock": (3, True),
    "16_pack_museum": 3,
    "17_ferry_simulation": (True, True),
}


def source(path):
    return path.read_text(encoding="utf-8")


def test_text_is_long_enough_and_unchanged():
    text = "".join(source(path) for path in MODULES).encode()
    assert len(text) >= 56_000
    assert hashlib.sha256(text).hexdigest() == SHA256, "recorded quality figures no longer compare"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_runs(path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"evaltext_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up by name
    compile(source(path), path.name, "exec", dont_inherit=True)
    spec.loader.exec_module(module)
    assert doctest.testmod(module).failed == 0
    if hasattr(module, "demo"):
        outcome = module.demo()
        assert outcome is not None
        assert outcome == OUTCOMES.get(path.stem, outcome)


def test_no_passage_repeats_across_modules():
    owner = {}
    for path in MODULES:
        lines = [line.strip() for line in source(path).splitlines() if line.strip()]
        for start in range(len(lines) - 5):
            passage = tuple(lines[start : start + 6])
            assert owner.setdefault(passage, path.name) == path.name, f"{path.name}: {passage}"
