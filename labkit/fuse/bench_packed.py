"""A layer's matrix products on packed weights, beside the same product in full precision and others' kernels.

At few tokens a product is as fast as its weight can be read, so bytes decide; at many the arithmetic does, and
unpacking is work that full precision does not have. Where the lines cross is the number of rows from which a packed
weight saves memory only.

Peers: torch.compile of the plain expression (x · w) · s for int8, as gpt-fast has it; torch's own int4 product
(tinygemm); torch's int8 · int8 product, for activations that are quantised too; bitsandbytes' NF4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.fuse.contest import contest, copies, reason
from labkit.kernels.formats import Format
from labkit.kernels.linear import arrival_counters, linear
from labkit.kernels.packed import Packed, quantise
from labkit.kernels.packed_linear import packed_linear
from labkit.kernels.w8a8 import scaled_rows, w8a8_linear
from labkit.profile import Shape, cache_bytes
from labkit.timing import duration

FULL = "torch, full precision"
CALLS = 64
"""Calls of one timed run on a GPU."""
GROUP = 128


@dataclass(frozen=True)
class Contender:
    """One way to hold a weight and multiply with it.

    Args:
        pack: weight [N, K] → what the product reads.
        multiply: (x [T, K], what was packed) → [T, N].
        ours: whether it is labkit's.
    """

    pack: Callable[[Tensor], Any]
    multiply: Callable[[Tensor, Any], Tensor]
    ours: bool = False


def products(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    bandwidth: float,
    *,
    tokens: Sequence[int],
    repeats: int,
    compiling: bool = True,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Time every contender at a layer's four products in turns, and say each result at once.

    Args:
        bandwidth: measured read bandwidth, of which a rate is a share [B/s].

    Returns:
        One entry a product and number of tokens: see labkit.batch.bench_compress.
    """
    found = []
    generator = torch.Generator(device=device).manual_seed(0)
    on_gpu = device.type == "cuda"

    def random(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)

    for name, rows, columns in sizes(shape):
        count = copies(rows * columns // 2, cache_bytes(device), 16)[0] if on_gpu else 2
        weights = [random(rows, columns) / columns**0.5 for _ in range(count)]
        known = contenders(rows, device, compiling and on_gpu)
        packed = {kind: _packed(each, weights) for kind, each in known.items()}
        for many in tokens:
            x = random(many, columns)
            calls = {kind: _call(x, kind, each) for kind, each in known.items()}
            inputs = [({kind: made[i] for kind, made in packed.items()},) for i in range(count)]
            timed = contest(
                calls, inputs, device, baseline=FULL, repeats=repeats, calls_each=CALLS if on_gpu else 0
            )
            for kind, one in timed.items():
                if "seconds" in one:
                    one["bytes"] = stored(packed[kind][0])
                    one["rate"] = one["bytes"] / one["seconds"]
                    one["share"] = one["rate"] / bandwidth
            found.append({"kernel": name, "shape": (rows, columns), "tokens": many, "contenders": timed})
            say(f"  {name:<9} T={many:<4} {_line(timed)}")
        del packed, weights
    return found


def sizes(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """(name, N, K) of a layer's products with merged projections."""
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "qkv", heads + 2 * kv, shape.hidden
    yield "out", shape.hidden, heads
    yield "gate, up", 2 * shape.intermediate, shape.hidden
    yield "down", shape.hidden, shape.intermediate


def contenders(rows: int, device: torch.device, compiling: bool) -> dict[str, Contender]:
    """Name → contender, full precision first."""
    counters = arrival_counters(rows, device)

    def ours(kind: Format) -> Contender:
        return Contender(
            lambda weight: quantise(weight, kind),
            lambda x, weight: packed_linear(x, weight, counters=counters),
            True,
        )

    found = {
        FULL: Contender(lambda weight: weight, F.linear),
        "labkit, full precision": Contender(
            lambda weight: weight, lambda x, weight: linear(x, weight, counters=counters), True
        ),
        "labkit int8": ours(Format("int8")),
        "labkit fp8": ours(Format("fp8")),
        "labkit int4": ours(Format("int4", GROUP, symmetric=False)),
        "labkit w8a8": Contender(lambda weight: quantise(weight, Format("int8")), w8a8_linear, True),
    }
    if device.type == "cuda":
        found["torch int8 · int8"] = Contender(lambda weight: quantise(weight, Format("int8")), _int_mm)
        found["torch int4 (tinygemm)"] = Contender(_tinygemm_pack, _tinygemm)
        found["bitsandbytes nf4"] = Contender(_nf4_pack, _nf4)
    if compiling:
        scaled = torch.compile(
            _scaled, dynamic=False, options={"coordinate_descent_tuning": True, "epilogue_fusion": True}
        )
        found["torch.compile int8"] = Contender(
            lambda weight: quantise(weight, Format("int8")), lambda x, w: scaled(x, w.values, w.scales)
        )
    return found


def stored(made: Any) -> int:
    """Bytes of what a contender reads as its weight."""
    if isinstance(made, Packed):
        return made.nbytes
    if isinstance(made, Tensor):
        return made.nbytes
    return sum(each.nbytes for each in made if isinstance(each, Tensor))


def _scaled(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    return F.linear(x, values.to(x.dtype)) * scales[:, 0]


def _int_mm(x: Tensor, weight: Packed) -> Tensor:
    """torch's product wants more than 16 rows: others run on padding."""
    numbers, scale = scaled_rows(x)
    padded = F.pad(numbers, (0, 0, 0, max(0, 32 - len(numbers))))
    sums = torch._int_mm(padded, weight.values.t())[: len(numbers)]
    return (sums * scale * weight.scales[:, 0].float()).to(x.dtype)


def _tinygemm_pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """torch's int4: its layout is made of the numbers, and ŵ = (q - 8) · s + z."""
    made = quantise(weight, Format("int4", GROUP, symmetric=False))
    q = made.integers().to(torch.uint8)
    assert made.zeros is not None
    scales = made.scales.float()
    middle = (8 - made.zeros.float()) * scales
    both = torch.stack((scales, middle), 2).transpose(0, 1).contiguous().to(torch.bfloat16)
    values = torch.ops.aten._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).contiguous(), 8)
    return values, both


def _tinygemm(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    out: Tensor = torch.ops.aten._weight_int4pack_mm(x, weight[0], GROUP, weight[1])
    return out


def _nf4_pack(weight: Tensor) -> tuple[Any, ...]:
    from bitsandbytes.functional import quantize_4bit

    values, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
    return values, state.absmax, state


def _nf4(x: Tensor, weight: tuple[Any, ...]) -> Tensor:
    from bitsandbytes import matmul_4bit

    out: Tensor = matmul_4bit(x, weight[0].t(), quant_state=weight[2])
    return out


def _packed(contender: Contender, weights: Sequence[Tensor]) -> list[Any]:
    """What the contender reads for each weight, or the error that it met."""
    try:
        return [contender.pack(weight) for weight in weights]
    except Exception as error:  # a package or a build without it is that contender's failure
        return [error] * len(weights)


def _call(x: Tensor, kind: str, contender: Contender) -> Callable[[dict[str, Any]], Tensor]:
    def call(made: dict[str, Any]) -> Tensor:
        if isinstance(made[kind], Exception):
            raise RuntimeError(reason(made[kind]))
        return contender.multiply(x, made[kind])

    return call


def _line(timed: dict[str, dict[str, Any]]) -> str:
    return ", ".join(
        f"{name} {duration(one['seconds'])} ({one['share']:.0%})" if "seconds" in one else f"{name} –"
        for name, one in timed.items()
    )
