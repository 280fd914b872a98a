"""labkit doctor: what it finds on this machine, and what it says of machines we have not got."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from labkit.doctor import content, hardware, software
from labkit.doctor.findings import Finding, Outlook, Report
from labkit.doctor.probing import PROBES, Probes
from labkit.doctor.show import show

GIB = 1024**3


@pytest.fixture(scope="module")
def report() -> dict:
    """What the doctor really says here."""
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--json"], capture_output=True, text=True
    )
    content = json.loads(done.stdout)
    assert done.returncode == int(content["broken"]), done.stderr
    return content


def test_it_tries_things_on_this_machine(report: dict) -> None:
    found = {one["name"]: one for one in report["findings"]}
    for name in ("Python", "processor", "GPU", "Triton", "bitsandbytes", "packages", "JupyterLab", "disk", "labcoder",
                 "embedded models", "notebooks"):  # fmt: skip
        assert found[name]["text"], name
    broken = [one for one in report["findings"] if one["state"] == "broken"]
    assert not broken and not report["broken"]
    assert "NF4 and int8 on cpu" in found["bitsandbytes"]["text"]


def test_it_says_what_each_notebook_will_do(report: dict) -> None:
    mine = [one for one in report["notebooks"] if one["notebook"] == "01_profile"]
    assert len(mine) >= 3
    assert {one["will"] for one in mine} <= {"run", "run slower", "be skipped"}
    assert all(one["why"] for one in mine)


def torch_facts(**changes: object) -> dict:
    return {"version": "2.13.0", "cuda": None, "devices": [], "threads": 2, "driver_gpus": [], **changes}


def card(**changes: object) -> dict:
    return {"name": "H200", "total": 141 * GIB, "free": 120 * GIB, "capability": [9, 0], "bf16": True, "error": "",
            **changes}  # fmt: skip


def test_devices_in_words() -> None:
    (_, gpu) = hardware.device(torch_facts(cuda="13.0", devices=[card()], driver_gpus=["H200"]))
    assert gpu.state == "ok" and "141.0 GiB" in gpu.text and "9.0" in gpu.text
    (_, none) = hardware.device(torch_facts())
    assert none.state == "note"
    (_, unused) = hardware.device(torch_facts(driver_gpus=["RTX 4090"]))
    assert unused.state == "note" and "TORCH=cuda" in unused.remedy
    (_, unusable) = hardware.device(torch_facts(cuda="13.0", driver_gpus=["RTX 4090"]))
    assert unusable.state == "broken"
    (_, old) = hardware.device(torch_facts(cuda="13.0", devices=[card(capability=[7, 5], bf16=False)]))
    assert old.state == "note" and "float16" in old.text
    (_, full) = hardware.device(torch_facts(cuda="13.0", devices=[card(error="out of memory")]))
    assert full.state == "broken" and "out of memory" in full.text
    (torch,) = hardware.device({"error": "ImportError: no torch"})
    assert torch.state == "broken"


def test_triton_compiled_interpreted_absent_or_broken() -> None:
    states = [
        ({"mode": "compiled", "version": "3"}, "ok", "compiled"),
        ({"mode": "interpreted", "version": "3"}, "note", "interpreted"),
        ({"mode": "absent", "system": "Windows"}, "note", "Windows"),
        ({"mode": "absent", "system": "Linux"}, "broken", "not installed"),
        ({"error": "RuntimeError: Failed to find C compiler"}, "broken", "C compiler"),
    ]
    for facts, state, words in states:
        found = hardware.triton(facts)
        assert found.state == state and words in found.text
        assert found.remedy or state != "broken"


def test_bitsandbytes_names_the_back_end_that_fails() -> None:
    found = hardware.bitsandbytes({"version": "1", "works": ["cpu"], "errors": {"cuda": "no kernel image"}})
    assert found.state == "broken" and "cuda: no kernel image" in found.text


def test_versions_against_needs_and_lock() -> None:
    fits, misses = Requirement("packaging>=1"), Requirement("packaging==0.1")
    absent = Requirement("surely-not-installed==1")
    assert software.packages([fits], [fits]).state == "ok"
    assert software.packages([fits], [misses]).state == "note"
    for needed, pinned in (([misses], []), ([absent], []), ([fits], [absent])):
        found = software.packages(needed, pinned)
        assert found.state == "broken" and found.remedy
    local = Requirement("torch==2.13.0")
    assert local.specifier.contains("2.13.0+cpu")  # what lets the CPU build satisfy the lock


def test_a_damaged_or_missing_weight_is_named(tmp_path: Path) -> None:
    good, bad = b"weights" * 100, b"weights" * 99
    for name, content_ in (("a.safetensors", good), ("b.safetensors", bad)):
        (tmp_path / name).write_bytes(content_)
    names = ("a.safetensors", "b.safetensors", "c.safetensors")
    lines = [f"{hashlib.sha256(good).hexdigest()}  {name}\n" for name in names]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    assert list(content.damaged(tmp_path / "SHA256SUMS")) == [
        "data/b.safetensors has changed",
        "data/c.safetensors is missing",
    ]


@pytest.mark.parametrize(
    "code, words",
    [
        ('import os; print(\'{"probe": "torch", "facts": {}}\', flush=True); os.abort()', "signal 6"),
        ("import sys; print('noise'); sys.exit('last words')", "last words"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_a_crash_of_a_probe_is_a_finding(code: str, words: str) -> None:
    with Probes([sys.executable, "-c", code], time_limit=2.0) as probes:
        facts = probes.collect()
    assert set(facts) == set(PROBES)
    assert words in facts["labcoder"]["error"]
    assert ("error" not in facts["torch"]) == ("torch" in code)
    found = content.model(facts) + [
        hardware.triton(facts["triton"]),
        hardware.bitsandbytes(facts["bitsandbytes"]),
    ]
    assert all(one.state == "broken" and one.remedy for one in found)


@pytest.mark.parametrize("free, expected", [(0, ["run slower", "be skipped", "be skipped"]),
                                            (6, ["run", "run", "be skipped"]), (80, ["run"] * 3)])  # fmt: skip
def test_the_outlook_follows_the_machine(free: int, expected: list[str]) -> None:
    devices = [card(free=free * GIB)] if free else []
    facts = {
        "torch": torch_facts(devices=devices),
        "exercises": {"notebooks": {"01_profile": {"all": 9, "cuda": 2}}},
    }
    plain, gpu, *parts = content.outlook(facts)
    assert plain.part == "7 exercises" and gpu.part.startswith("2 exercises")
    assert gpu.will == ("run" if free else "be skipped")
    assert [one.will for one in parts] == expected


def test_what_is_broken_must_have_a_remedy_and_ends_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        Finding("x", "broken", "no way out")
    outlook = (Outlook("01_profile", "all [of] it", "run", "why not"),)
    bad = Report((Finding("disk", "ok", "fine"), Finding("GPU", "broken", "hot [red]", "Cool it.")), outlook)
    assert bad.broken and json.loads(bad.json())["broken"]
    show(bad)
    said = capsys.readouterr().out
    assert "hot [red]" in said and "→ Cool it." in said and said.strip().endswith("To mend: GPU.")
    good = Report(bad.findings[:1], ())
    assert not good.broken
    show(good)
    assert "works here" in capsys.readouterr().out
