"""torchao's quantised models, at the setting that is best for them: a static cache, decoding through torch.compile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from labkit.batch.bench_parts import say
from labkit.batch.compress_parts import Kitchen, figured, prompt
from labkit.batch.peers import generate_pace
from labkit.fuse.contest import reason
from labkit.models import load
from labkit.timing import Measurement


def torchao(kitchen: Kitchen) -> dict[str, Any]:
    """int8 weights by torchao's own product, int4 by torch's (tinygemm), each on a model of its own."""
    found: dict[str, Any] = {}
    for name, config in {"torchao int8": _int8, "torchao int4 (torch's product)": _int4}.items():
        try:
            found[name] = _paced(kitchen, name, config)
        except Exception as error:  # an extra that is not installed, or a setting that this build lacks
            found[name] = {"unavailable": reason(error)}
            say(f"  {name}: {found[name]['unavailable']}")
        gc.collect()
        if kitchen.lm.device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def _paced(kitchen: Kitchen, name: str, config: Callable[[], Any]) -> dict[str, Any]:
    from torchao.quantization import quantize_

    lm = load(kitchen.asked, device=str(kitchen.lm.device), dtype=kitchen.lm.dtype)
    body = lm.model.get_decoder()  # as ours: the last projection keeps its precision
    quantize_(body, config())
    paces, compiled = generate_pace(
        lm, prompt(kitchen, 0), kitchen.plan.new, static=True, warmup=2, repeats=kitchen.plan.repeats
    )
    one = figured(kitchen, name, {"runs": Measurement(tuple(paces)), "compiled": compiled}, lm)
    return one | {"weight_bytes": _bytes(lm.model)}


def _int8() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def _int4() -> Any:
    """Its default layout wants a package that is published for few systems; this one is torch's own."""
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")


def _bytes(model: torch.nn.Module) -> int:
    """Stored bytes; torchao's weights are tensors made of tensors."""
    total, seen = 0, set()
    for weight in model.parameters():
        inner = getattr(weight, "__tensor_flatten__", None)
        parts = [getattr(weight, key) for key in inner()[0]] if inner else [weight]
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                total += part.numel() * part.element_size()
    return total
