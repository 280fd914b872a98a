"""Which build of torch is installed, and from where. The CPU build is never replaced by the CUDA build unasked."""

import itertools
import subprocess
import sys
from pathlib import Path

import install
import pytest
import torch_build
from interpreter import Stop
from torch_build import CPU_INDEX, CUDA_INDEX, INDEX_VARIABLE, choose, source

OWN = "https://wheels.example.org/simple"


def test_auto_follows_the_driver() -> None:
    for system in ("linux", "win32"):
        assert choose("auto", system, 0).build == "cpu"
        assert choose("auto", system, 13020).build == "cuda"
        old = choose("auto", system, 12040)
        assert old.build == "cpu" and "12.4" in old.reason and "13.0" in old.reason
    assert choose("auto", "darwin", 0).build == "cpu"


def test_a_choice_is_obeyed_or_refused() -> None:
    for setting, driver in itertools.product(("cpu", "cuda"), (0, 12040, 13020)):
        assert choose(setting, "linux", driver).build == setting
    with pytest.raises(Stop, match="no CUDA on macOS"):
        choose("cuda", "darwin", 0)
    with pytest.raises(Stop, match="TORCH=gpu"):
        choose("gpu", "linux", 0)


def test_cpu_on_linux_always_asks_for_the_cpu_build_by_name() -> None:
    for offers, environment in itertools.product((True, False), ({}, {INDEX_VARIABLE: OWN})):
        asked: list[str] = []

        def offered(requirement: str, offers: bool = offers, asked: list[str] = asked) -> bool:
            asked.append(requirement)
            return offers

        found = source("cpu", "2.13.0", "linux", offered, environment)
        assert found.arguments[0] == "torch==2.13.0+cpu"
        index = (
            found.arguments[found.arguments.index("--index-url") + 1]
            if "--index-url" in found.arguments
            else ""
        )
        if environment:
            assert index == OWN and not asked
        else:
            assert asked == ["torch==2.13.0+cpu"]
            assert index == ("" if offers else CPU_INDEX)


def test_cuda_on_linux_cannot_be_answered_by_a_cpu_wheel() -> None:
    from packaging.requirements import Requirement

    found = source("cuda", "2.13.0", "linux", lambda _: pytest.fail("nothing to ask"), {})
    wanted = Requirement(found.arguments[0]).specifier
    assert wanted.contains("2.13.0") and wanted.contains("2.13.0+cu130") and not wanted.contains("2.13.0+cpu")
    assert "--no-deps" not in found.arguments  # the CUDA libraries are torch's own dependencies


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_the_plain_wheel_is_the_cpu_build(system: str) -> None:
    found = source("cpu", "2.13.0", system, lambda _: pytest.fail("nothing to ask"), {})
    assert found.arguments[0] == "torch==2.13.0" and "--index-url" not in found.arguments
    if system == "win32":
        assert CUDA_INDEX in source("cuda", "2.13.0", system, lambda _: True, {}).arguments


def test_a_missing_cpu_build_stops_and_says_how_to_allow_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither pip's sources nor the public index have it: no other torch may be asked for."""
    calls: list[tuple[str, ...]] = []

    def failing(self: install.Environment, *arguments: str) -> int:
        calls.append(arguments)
        return 1

    monkeypatch.setattr(install.Environment, "pip_install", failing)
    monkeypatch.setattr(torch_build, "pip_offers", lambda python: lambda requirement: False)
    monkeypatch.delenv(INDEX_VARIABLE, raising=False)
    (tmp_path / "requirements.lock").write_text("torch==2.13.0\n")
    with pytest.raises(Stop) as stopped:
        install.install_course(install.Environment(tmp_path, "linux"), "cpu")
    assert len(calls) == 1 and "torch==2.13.0+cpu" in calls[0]
    for words in (CPU_INDEX, INDEX_VARIABLE, "TORCH=cuda", "PIP_FIND_LINKS"):
        assert words in str(stopped.value)


def test_the_wrong_build_or_a_broken_one_is_noticed(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    for output, build, words in (
        ("echo 13.0", "cpu", "cpu build of torch was asked for"),
        ("echo cpu", "cuda", "cuda build of torch was asked for"),
        ("echo 'ImportError: libc' >&2; exit 1", "cpu", "ImportError: libc"),
    ):
        fake.write_text(f"#!/bin/sh\n{output}\n")
        fake.chmod(0o755)
        with pytest.raises(Stop, match=words):
            torch_build.check_installed(str(fake), build)
    fake.write_text("#!/bin/sh\necho cpu\n")
    torch_build.check_installed(str(fake), "cpu")


def test_pip_is_asked_without_installing_anything(tmp_path: Path) -> None:
    """The question is put to the real pip, for a wheel in a folder and for one that is nowhere."""
    build_wheel(tmp_path / "wheels", "labkit_probe_wheel", "1.0+cpu")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(torch_build.__file__).parent)!r})\n"
        "import torch_build\n"
        "offered = torch_build.pip_offers(sys.executable)\n"
        "print(offered('labkit-probe-wheel==1.0+cpu'), offered('labkit-probe-wheel==2.0+cpu'))\n"
    )
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
    listed = subprocess.run([sys.executable, "-m", "pip", "list"], capture_output=True, text=True).stdout
    assert "labkit-probe-wheel" not in listed and "labkit_probe_wheel" not in listed


def build_wheel(folder: Path, name: str, version: str) -> None:
    """An empty wheel, written by hand."""
    import zipfile

    folder.mkdir()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
