"""Write requirements.lock, requirements-dev.lock and requirements-extras.lock from pyproject.toml: `make lock`.

Every version exactly, for Linux, macOS and Windows and every supported Python at once. The CUDA libraries are
left out: torch's CUDA build names the ones it needs, and the CPU build needs none.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from interpreter import OLDEST, Stop

HEADER = """\
# {what}
# Written by `make lock` from pyproject.toml; do not edit by hand.
# One file for Python 3.11 to 3.13 on Linux, macOS and Windows. CUDA libraries are absent on purpose:
# torch's CUDA build brings its own.
"""
EXTRAS = ("onnx", "peers")
BROUGHT_BY_TORCH = re.compile(r"^(nvidia-(?!ml-py)|cuda-)")


def compile_lock(uv: Path, root: Path, extras: list, preferred: Path) -> list:
    """Resolve pyproject.toml to sorted pinned lines, for all platforms.

    Args:
        preferred: an earlier lock; its versions are kept wherever they still fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.txt"
        if preferred.exists():
            output.write_text(preferred.read_text(encoding="utf-8"), encoding="utf-8")
        command = [str(uv), "pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate"]
        command += [
            "--python-version",
            f"{OLDEST[0]}.{OLDEST[1]}",
            "--fork-strategy",
            "fewest",
            "--no-config",
        ]
        command += [item for extra in extras for item in ("--extra", extra)]
        command += ["pyproject.toml", "-o", str(output)]
        if subprocess.run(command, cwd=root).returncode:
            raise Stop("The resolver found no set of versions; its reason is above.")
        lines = output.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and line[0] != "#" and not BROUGHT_BY_TORCH.match(line)]


def write(root: Path, python: str, fresh: bool) -> None:
    """Make the lock files again; `fresh` takes the newest versions instead of keeping what still fits."""
    runtime, tools = root / "requirements.lock", root / "requirements-dev.lock"
    optional = root / "requirements-extras.lock"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        binaries = Path(folder) / ("Scripts" if os.name == "nt" else "bin")
        subprocess.run([str(binaries / "python"), "-m", "pip", "install", "--quiet", "uv"], check=True)
        kept = Path(folder) / "kept.txt"
        if not fresh:
            kept.write_text(
                "".join(p.read_text(encoding="utf-8") for p in (runtime, tools, optional) if p.exists())
            )
        everything = compile_lock(binaries / "uv", root, ["dev", *EXTRAS], kept)
        kept.write_text("\n".join(everything) + "\n", encoding="utf-8")
        course = compile_lock(binaries / "uv", root, [], kept)
        with_tools = compile_lock(binaries / "uv", root, ["dev"], kept)
    only_tools = [line for line in with_tools if line not in course]
    only_extras = [line for line in everything if line not in with_tools]
    for path, lines, what in (
        (runtime, course, "What the course runs on."),
        (tools, only_tools, "What its developers need besides: tests, lint, types, a browser driver."),
        (optional, only_extras, "What the optional extras need besides: {}.".format(", ".join(EXTRAS))),
    ):
        path.write_text(HEADER.format(what=what) + "\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(lines)} packages")
