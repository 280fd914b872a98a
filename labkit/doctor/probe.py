"""Try things for real, each once and small, and print what happened: one JSON line a probe.

Run by `labkit doctor` in a process of its own. Each function returns facts; an exception becomes {"error": …}.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any


def torch_probe() -> dict[str, Any]:
    """Import torch, and run a matrix product on every GPU it sees."""
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        entry: dict[str, Any] = {
            "name": properties.name,
            "total": properties.total_memory,
            "capability": [properties.major, properties.minor],
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        }
        try:
            entry["free"] = torch.cuda.mem_get_info(index)[0]
            x = torch.randn(64, 64, device=f"cuda:{index}")
            difference = (x @ x).cpu() - x.cpu() @ x.cpu()
            entry["error"] = "" if difference.abs().max() < 0.1 else "a matrix product came out wrong"
        except Exception as error:
            entry["error"] = words(error)
        devices.append(entry)
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "driver_gpus": driver_gpus(),
    }


def driver_gpus() -> list[str]:
    """The GPUs that the NVIDIA driver knows, whether or not torch can use them."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]


def triton_probe() -> dict[str, Any]:
    """Run a small kernel: compiled on a GPU, through Triton's interpreter elsewhere."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton's first import
    try:
        import triton
    except ImportError:
        return {"mode": "absent", "system": platform.system()}
    from labkit.doctor import probe_kernel

    probe_kernel.check("cuda" if torch.cuda.is_available() else "cpu")
    return {"mode": "compiled" if torch.cuda.is_available() else "interpreted", "version": triton.__version__}


def bitsandbytes_probe() -> dict[str, Any]:
    """Quantise a random matrix to NF4 and to int8 and back, on every back end the course uses."""
    import bitsandbytes
    import torch
    from bitsandbytes import functional

    works, errors = [], {}
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        try:
            weight = torch.randn(128, 192, device=device)
            four = functional.dequantize_4bit(*functional.quantize_4bit(weight, quant_type="nf4"))
            eight = functional.dequantize_blockwise(*functional.quantize_blockwise(weight))
            for back, bound in ((four, 0.2), (eight, 0.05)):
                off = float((back - weight).abs().mean() / weight.abs().mean())
                if not off < bound:
                    raise ValueError(f"a quantised matrix came back {off:.0%} off")
            works.append(device)
        except Exception as error:
            errors[device] = words(error)
    return {"version": bitsandbytes.__version__, "works": works, "errors": errors}


def labcoder_probe() -> dict[str, Any]:
    """Load the embedded model and predict one token with it."""
    import torch

    import labkit

    lm = labkit.load("labcoder", device="cpu")
    with torch.inference_mode():
        logits = lm.model(lm.encode("def add(a, b):\n    return")).logits
    if not torch.isfinite(logits).all():
        raise ValueError("labcoder's logits are not finite")
    return {"vocab": lm.config.vocab_size, "weight_bytes": lm.weight_bytes}


def exercises_probe() -> dict[str, Any]:
    """Per notebook: how many exercises there are, and how many of them need a GPU to be verified."""
    from labkit.course import exercises

    found = {}
    for notebook in exercises.notebooks():
        all_of_it = exercises.of(notebook)
        found[notebook] = {"all": len(all_of_it), "cuda": sum("cuda" in one.needs for one in all_of_it)}
    return {"notebooks": found}


def words(error: BaseException) -> str:
    """An exception in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]


def main() -> None:
    """Run every probe; each reports before the next begins."""
    probes: dict[str, Callable[[], dict[str, Any]]] = {
        "torch": torch_probe,
        "triton": triton_probe,
        "bitsandbytes": bitsandbytes_probe,
        "labcoder": labcoder_probe,
        "exercises": exercises_probe,
    }
    for name, probe in probes.items():
        try:
            facts = probe()
        except Exception as error:
            facts = {"error": words(error)}
        sys.stdout.write("\n" + json.dumps({"probe": name, "facts": facts}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
