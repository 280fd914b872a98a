"""Which build of torch to install, and where pip shall take it from.

PyPI's torch for Linux is the CUDA build: gigabytes that a laptop without an NVIDIA card cannot use. The CPU
build lives on PyTorch's own index. Someone who asked for the CPU build never gets the other one by accident.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from typing import Callable, List, Mapping, NamedTuple

from interpreter import Stop

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"  # Windows only: PyPI's Windows wheel is the CPU build
INDEX_VARIABLE = "LABKIT_TORCH_INDEX"
OLDEST_DRIVER = 13000  # torch 2.13 is built for CUDA 13.0


class Choice(NamedTuple):
    """cpu or cuda, and the reason in words."""

    build: str
    reason: str


class Source(NamedTuple):
    """Arguments for `pip install` that bring one build of torch, and the words for where it comes from."""

    arguments: List[str]
    words: str


def driver_version(system: str) -> int:
    """The newest CUDA that the NVIDIA driver speaks, as 13020 for 13.2; 0 without a driver.

    Only loads the driver's library and asks for its number: no device is initialised, so it costs milliseconds.
    """
    if system == "darwin":
        return 0
    number = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("nvcuda.dll" if system == "win32" else "libcuda.so.1")
        failed = library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else number.value


def choose(setting: str, system: str, driver: int) -> Choice:
    """Turn TORCH=auto|cpu|cuda into a build.

    Raises:
        Stop: an unknown setting, or cuda where it cannot exist.
    """
    if setting not in ("auto", "cpu", "cuda"):
        raise Stop(f"TORCH={setting} is not known. Choose TORCH=auto, TORCH=cpu or TORCH=cuda.")
    if setting == "cuda" and system == "darwin":
        raise Stop("TORCH=cuda: there is no CUDA on macOS. Leave TORCH out, or say TORCH=cpu.")
    if setting != "auto":
        return Choice(setting, f"TORCH={setting}")
    if not driver:
        return Choice("cpu", "no NVIDIA driver seen")
    if driver < OLDEST_DRIVER:
        spoken = f"{driver // 1000}.{driver % 1000 // 10}"
        return Choice(
            "cpu", f"the NVIDIA driver speaks CUDA {spoken}, this torch needs 13.0: update the driver"
        )
    return Choice("cuda", "NVIDIA driver seen")


def source(
    build: str, version: str, system: str, offered: Callable[[str], bool], environment: Mapping = os.environ
) -> Source:
    """Where pip takes `build` of torch `version` from.

    Args:
        offered: says whether pip's configured sources have a requirement, without downloading it.
    """
    own = environment.get(INDEX_VARIABLE)
    if system == "linux":
        cpu = f"torch=={version}+cpu"
        if build == "cpu":
            if own:
                return Source([cpu, "--no-deps", "--index-url", own], own)
            if offered(cpu):
                return Source([cpu, "--no-deps"], "pip's configured sources")
            return Source([cpu, "--no-deps", "--index-url", CPU_INDEX], CPU_INDEX)
        spec = f"torch=={version},!={version}+cpu"  # a local CPU wheel would win by its longer version
        extra = ["--extra-index-url", own] if own else []
        return Source([spec, *extra], own or "pip's configured sources")
    if build == "cuda":
        index = own or CUDA_INDEX
        return Source([f"torch=={version}", "--no-deps", "--index-url", index], index)
    extra = ["--index-url", own] if own else []
    return Source([f"torch=={version}", "--no-deps", *extra], own or "pip's configured sources")


def not_found(build: str, version: str, words: str) -> Stop:
    """What to say when pip could not bring the build that was asked for."""
    if build == "cuda":
        return Stop(
            f"The CUDA build of torch {version} could not be installed from {words}; pip's reason is above.\n"
            f"Name another index with {INDEX_VARIABLE}=URL, or use the CPU build: make lab TORCH=cpu"
        )
    return Stop(
        f"The CPU build of torch {version} could not be installed from {words}; pip's reason is above.\n"
        f"Name another index with {INDEX_VARIABLE}=URL, or a folder of wheels with PIP_FIND_LINKS=FOLDER.\n"
        "The much larger CUDA build also runs without a GPU, but is only taken when you say so: make lab TORCH=cuda"
    )


def pip_offers(python: str) -> Callable[[str], bool]:
    """Ask pip whether its configured sources have a requirement: a dry run, nothing is installed."""

    def offered(requirement: str) -> bool:
        asked = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
        asked += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20", requirement]
        return subprocess.run(asked, capture_output=True, text=True).returncode == 0

    return offered


def check_installed(python: str, build: str) -> None:
    """Import the torch that was installed and hold it against the build that was asked for.

    Raises:
        Stop: torch does not import, or is the other build.
    """
    code = "import torch; print(torch.version.cuda or 'cpu')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise Stop(f"torch was installed but does not import:\n{done.stderr.strip()[-800:]}")
    found = "cpu" if done.stdout.strip() == "cpu" else "cuda"
    if found != build:
        raise Stop(f"The {build} build of torch was asked for, but pip installed the {found} build.")
