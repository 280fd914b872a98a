"""Python, the pinned packages, and whether Jupyter starts this Python."""

import importlib.metadata as metadata
import platform
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit import paths
from labkit.doctor.findings import Finding

SET_UP = "Run `make lab` (Windows: py scripts\\setup.py lab), which installs what is pinned."


def findings() -> list[Finding]:
    """Python first, then the packages, then Jupyter."""
    return [python(), packages(requirements(), locked()), jupyter()]


def python() -> Finding:
    """Is this Python one that the course supports?"""
    here, text = platform.python_version(), f"{platform.python_version()} in {sys.prefix}"
    try:
        wanted = metadata.metadata("labkit")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return Finding(
            "Python", "broken", f"{text}; labkit runs from its folder but is not installed", SET_UP
        )
    if SpecifierSet(wanted).contains(here, prereleases=True):
        return Finding("Python", "ok", text)
    return Finding("Python", "broken", f"{text}; the course needs {wanted}", SET_UP)


def requirements() -> list[Requirement]:
    """What labkit itself needs on this system."""
    every = [Requirement(text) for text in (metadata.requires("labkit") or [] if installed("labkit") else [])]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]


def locked(path: Path | None = None) -> list[Requirement]:
    """The lines of requirements.lock that apply to this system; none when labkit lies outside the course."""
    path = path or paths.root() / "requirements.lock"
    if not path.is_file():
        return []
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    every = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [one for one in every if one.marker is None or one.marker.evaluate()]


def packages(needed: list[Requirement], pinned: list[Requirement]) -> Finding:
    """Compare what is installed with what labkit needs (a miss is broken) and with the lock (a miss is a note)."""
    unfit = [words for one in needed if (words := misfit(one))]
    if unfit:
        return Finding("packages", "broken", "; ".join(unfit), SET_UP)
    missing = [one.name for one in pinned if installed(one.name) is None]
    if missing:
        return Finding("packages", "broken", f"not installed: {', '.join(missing)}", SET_UP)
    other = [words for one in pinned if (words := misfit(one))]
    versions = ", ".join(f"{name} {installed(name)}" for name in ("torch", "transformers", "jupyterlab"))
    if other:
        return Finding("packages", "note", f"{versions}; not as locked: {'; '.join(other)}", SET_UP)
    return Finding("packages", "ok", f"{versions}; all {len(pinned)} as locked")


def misfit(requirement: Requirement) -> str:
    """How the installed version misses a requirement; empty when it fits. A CPU build's +cpu still fits."""
    there = installed(requirement.name)
    if there is None:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(there, prereleases=True):
        return ""
    return f"{requirement.name} is {there}, wanted {requirement.specifier}"


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def jupyter() -> Finding:
    """JupyterLab is there, and its Python kernel is this Python."""
    remedy = f'Run `"{sys.executable}" -m ipykernel install --sys-prefix`.'
    if installed("jupyterlab") is None:
        return Finding("JupyterLab", "broken", "not installed", SET_UP)
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except ImportError as error:
        return Finding("JupyterLab", "broken", f"its kernels cannot be listed: {error}", SET_UP)
    except NoSuchKernel:
        return Finding("JupyterLab", "broken", "there is no Python kernel", remedy)
    # jupyter starts its own Python for a kernel whose command is just "python"
    if Path(command).is_absolute() and Path(command).absolute() != Path(sys.executable).absolute():
        return Finding("JupyterLab", "broken", f"its Python kernel starts another Python: {command}", remedy)
    return Finding("JupyterLab", "ok", f"{installed('jupyterlab')}, its kernel is this Python")
