"""pyproject.toml, the two locks, environment.yml and pre-commit say the same."""

import importlib.metadata as metadata
import re
import tomllib
from pathlib import Path

import lock
import pytest
import torch_build
import yaml
from lock import BROUGHT_BY_TORCH
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11.0", "3.11.14", "3.12.0", "3.13.0", "3.13.9")
SYSTEMS = ({"sys_platform": "linux", "os_name": "posix"}, {"sys_platform": "darwin", "os_name": "posix"},
           {"sys_platform": "win32", "os_name": "nt"})  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pinned(name: str) -> dict[str, Requirement]:
    """The lines of a lock by canonical name; each name once."""
    lines = [
        line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
    ]
    requirements = {canonical(Requirement(line).name): Requirement(line) for line in lines}
    assert len(requirements) == len(lines), f"{name} names a package twice"
    return requirements


COURSE, TOOLS = pinned("requirements.lock"), pinned("requirements-dev.lock")
OPTIONAL = pinned("requirements-extras.lock")


def worlds() -> list[dict[str, str]]:
    """Every supported Python on every system, as markers see them."""
    return [
        {**system, "python_full_version": python, "python_version": python.rpartition(".")[0], "extra": "",
         "implementation_name": "cpython", "platform_python_implementation": "CPython", "platform_machine": "x86_64"}
        for system in SYSTEMS
        for python in PYTHONS
    ]  # fmt: skip


def applies(requirement: Requirement, world: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(world)


def test_every_version_is_pinned_exactly() -> None:
    for name, requirement in {**COURSE, **TOOLS, **OPTIONAL}.items():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), name
        assert requirement.url is None and not requirement.extras
    assert not COURSE.keys() & TOOLS.keys() and not (COURSE | TOOLS).keys() & OPTIONAL.keys()
    for name in lock.EXTRAS:  # optional packages move fast, and nothing else of the course notices
        assert all(re.search(r"==[^*,;]+", text) for text in EXTRAS[name])


@pytest.mark.parametrize(
    "text, locked",
    [
        (PROJECT["dependencies"], COURSE),
        (EXTRAS["dev"], {**COURSE, **TOOLS}),
        *((EXTRAS[name], {**COURSE, **OPTIONAL}) for name in lock.EXTRAS),
    ],
)
def test_what_the_package_asks_for_is_locked_on_every_system(
    text: list[str], locked: dict[str, Requirement]
) -> None:
    for wanted in map(Requirement, text):
        found = locked[canonical(wanted.name)]
        version = str(found.specifier).removeprefix("==")
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted} but {found}"
        for world in worlds():
            assert applies(found, world) or not applies(wanted, world), f"{wanted.name} in {world}"


def test_what_is_locked_needs_nothing_that_is_not() -> None:
    """Follow the installed packages' own requirements; torch's CUDA libraries are the one exception."""
    world = {**worlds()[0], "python_full_version": "3.11.7"}
    everything = {**COURSE, **TOOLS, **OPTIONAL}
    for name, requirement in everything.items():
        if not applies(requirement, world):
            continue
        try:
            needs = [Requirement(text) for text in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue  # another system's, or not installed by the course's own set-up
        for need in needs:
            if applies(need, world) and not BROUGHT_BY_TORCH.match(need.name) and not is_torch(name, need):
                known = COURSE if name in COURSE else everything
                assert canonical(need.name) in known, f"{name} needs {need}"
                version = str(known[canonical(need.name)].specifier).removeprefix("==")
                assert need.specifier.contains(version, prereleases=True), (
                    f"{name} needs {need}, locked: {version}"
                )


def is_torch(name: str, need: Requirement) -> bool:
    """torch asks for its own triton by build; the lock's pin is checked against PyPI's torch by `make lock`."""
    return name == "torch" and canonical(need.name) == "triton"


def test_the_lock_carries_no_cuda_libraries_and_keeps_triton_to_linux() -> None:
    assert not [name for name in COURSE if BROUGHT_BY_TORCH.match(name)]
    assert "nvidia-ml-py" in COURSE
    for world in worlds():
        assert applies(COURSE["triton"], world) == (world["sys_platform"] == "linux")
        assert applies(COURSE["torch"], world)


def test_the_locks_hold_nothing_of_the_machine_that_wrote_them() -> None:
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-extras.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"://|file:|--|@ |\\|^\s*-", text, re.MULTILINE), name


def test_the_conda_environment_agrees() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, pip, through_pip = environment["dependencies"]
    assert pip == "pip"
    wanted = SpecifierSet(python.removeprefix("python").strip())
    assert wanted == SpecifierSet(PROJECT["requires-python"])
    assert all(wanted.contains(version) for version in PYTHONS)
    # the very lock, not a second list of versions; and the CPU build's index as in set-up
    index = f"--extra-index-url {torch_build.CPU_INDEX}"
    assert through_pip["pip"] == [index, "-r requirements.lock", "-e ."]


def test_extras_are_asked_for_by_name_only_where_they_exist() -> None:
    assert set(EXTRAS) == {"dev", *lock.EXTRAS}
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    assert repository["hooks"][0]["entry"] == "python scripts/setup.py check"
