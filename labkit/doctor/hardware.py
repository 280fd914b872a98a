"""The device, Triton and bitsandbytes as the probes found them, and the disk."""

import platform
import shutil
from typing import Any

import psutil

from labkit import paths
from labkit.doctor.findings import Finding
from labkit.doctor.probing import Facts
from labkit.doctor.software import SET_UP

GIB = 1024**3
LOW_DISK, NO_DISK = 2.0, 0.2  # GiB: room for traces and compiled kernels; room for saving notebooks


def findings(facts: Facts) -> list[Finding]:
    """Device, Triton, bitsandbytes."""
    return [*device(facts["torch"]), triton(facts["triton"]), bitsandbytes(facts["bitsandbytes"])]


def device(facts: dict[str, Any]) -> list[Finding]:
    """The processor, and every GPU with its memory and compute capability."""
    if "error" in facts:
        return [Finding("torch", "broken", facts["error"], SET_UP)]
    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    processor = (
        f"{platform.machine()}, {cores} cores, {facts['threads']} torch threads, "
        f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB memory free"
    )
    found = [Finding("processor", "ok", processor)]
    found += [gpu(entry) for entry in facts["devices"]]
    if facts["devices"]:
        return found
    seen = ", ".join(facts["driver_gpus"])
    if not seen:
        text = "none that CUDA sees; everything runs on the processor"
        return [*found, Finding("GPU", "note", text)]
    if facts["cuda"] is None:
        text = f"{seen} is there, but this torch is the CPU build"
        return [*found, Finding("GPU", "note", text, "For the CUDA build: make lab TORCH=cuda")]
    text = f"{seen} is there, but torch (CUDA {facts['cuda']}) cannot use it"
    remedy = "Update the NVIDIA driver, or use the processor: make lab TORCH=cpu"
    return [*found, Finding("GPU", "broken", text, remedy)]


def gpu(entry: dict[str, Any]) -> Finding:
    """One GPU."""
    major, minor = entry["capability"]
    free = f"{entry['free'] / GIB:.1f} of " if "free" in entry else ""
    text = f"{entry['name']}, {free}{entry['total'] / GIB:.1f} GiB free, compute capability {major}.{minor}"
    if entry["error"]:
        remedy = "Close what else uses it, update its driver, or hide it with CUDA_VISIBLE_DEVICES= (empty)."
        return Finding("GPU", "broken", f"{text}: {entry['error']}", remedy)
    if not entry["bf16"]:
        return Finding("GPU", "note", f"{text}; no bfloat16 in hardware, so float16 is used")
    return Finding("GPU", "ok", text)


def triton(facts: dict[str, Any]) -> Finding:
    """Triton compiled, interpreted or absent."""
    if "error" in facts:
        remedy = (
            "Triton compiles with a C compiler and Python's headers: sudo apt-get install gcc python3-dev. "
            "If both are there: make install, which brings the pinned version back."
        )
        return Finding("Triton", "broken", facts["error"], remedy)
    if facts["mode"] == "absent" and facts["system"] == "Linux":
        return Finding("Triton", "broken", "not installed", SET_UP)
    if facts["mode"] == "absent":
        text = f"does not exist on {facts['system']}; the torch reference of each kernel serves"
        return Finding("Triton", "note", text)
    if facts["mode"] == "interpreted":
        text = f"{facts['version']}, interpreted: right but slow, as there is no GPU (a kernel was run)"
        return Finding("Triton", "note", text)
    return Finding("Triton", "ok", f"{facts['version']}, compiled for this GPU (a kernel was run)")


def bitsandbytes(facts: dict[str, Any]) -> Finding:
    """The back ends on which bitsandbytes really quantised something."""
    if "error" in facts:
        return Finding("bitsandbytes", "broken", facts["error"], SET_UP)
    works = " and ".join(facts["works"])
    if facts["errors"]:
        failed = "; ".join(f"{name}: {error}" for name, error in facts["errors"].items())
        return Finding("bitsandbytes", "broken", f"{facts['version']}, fails on {failed}", SET_UP)
    return Finding("bitsandbytes", "ok", f"{facts['version']}, quantised to NF4 and int8 on {works}")


def disk() -> Finding:
    """Free space where the course lies."""
    free = shutil.disk_usage(paths.root()).free / GIB
    text = f"{free:.1f} GiB free in {paths.root()}"
    if free < NO_DISK:
        return Finding("disk", "broken", text, "Make room: notebooks cannot be saved on a full disk.")
    return Finding("disk", "note" if free < LOW_DISK else "ok", text)
