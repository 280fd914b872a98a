"""Each fused kernel beside our torch reference, torch.compile of that reference, and Liger where it is installed.

The shapes are a model's. A time is that of one call, from `contest`; the rate is the bytes that must cross the
memory bus, each once, over that time. Steps of a few tokens move so little that their rate means nothing (a launch
takes longer); linear layers, whose weights are large, show it at any number of tokens.

Liger: Hsu et al. 2024, "Liger Kernel: Efficient Triton Kernels for LLM Training"; `pip install -e ".[peers]"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.fuse.contest import contest, copies
from labkit.kernels import gated, linear, rms_norm, rope
from labkit.kernels.pages import allocate, write
from labkit.profile import Shape, cache_bytes
from labkit.timing import duration

EPS = 1e-6
OURS, TORCH, COMPILED, LIGER = "labkit", "torch", "torch.compile", "liger"
LESS = "liger, rotation alone"
"""Does a part of what the others do, and stays out of the comparison."""
CALLS = 64
"""Calls of one timed run on a GPU."""


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Args:
        bytes: that one call must move.
        fresh: makes a copy of the inputs, other numbers each time.
        rotating: bytes of such a copy.
        compiled: what torch.compile gets, with its options.
        liger: makes Liger's contender, or None where Liger has no such kernel.
    """

    kernel: str
    shape: str
    tokens: int
    bytes: int
    rotating: int
    fresh: Callable[[], tuple[Tensor, ...]]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    liger: Callable[[], Callable[..., Any]] | None = None
    options: dict[str, Any] | None = None


def kernels(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    bandwidth: float,
    *,
    tokens: Sequence[int] = (1, 4, 16),
    long: Sequence[int] = (2048,),
    compiling: bool = True,
    repeats: int = 20,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Time all kernels at a model's sizes, and say each result at once.

    Args:
        bandwidth: measured read bandwidth, of which a rate is a share [B/s].
        tokens: of a step; `long` ones are for the elementwise kernels only.
        compiling: try torch.compile too (seconds a case on a GPU, tens of seconds on a CPU).

    Returns:
        One entry a case: see labkit.batch.bench_fuse.
    """
    found = []
    for case in cases(shape, dtype, device, tokens, long):
        count, cold = copies(case.rotating, cache_bytes(device), 64 if device.type == "cuda" else 4)
        inputs = [case.fresh() for _ in range(count)]
        timed = contest(
            contenders(case, compiling), inputs, device, baseline=TORCH, repeats=repeats,
            calls_each=CALLS if device.type == "cuda" else 0,
        )  # fmt: skip
        for one in timed.values():
            if "seconds" in one:
                one["rate"] = case.bytes / one["seconds"]
                one["share"] = one["rate"] / bandwidth
        entry = {"kernel": case.kernel, "shape": case.shape, "tokens": case.tokens, "bytes": case.bytes}
        found.append({**entry, "copies": count, "cold": cold, "contenders": timed, "ratio": ratio(timed)})
        say(f"  {case.kernel:<9} {case.shape:<16} T={case.tokens:<5}{_line(found[-1])}")
        del inputs
        if compiling:
            torch.compiler.reset()  # torch keeps eight versions of a function, and here are more shapes
    return found


def contenders(case: Case, compiling: bool) -> dict[str, Callable[..., Any]]:
    """Name → function, in the order of the tables."""
    calls = {OURS: case.ours, TORCH: case.torch}
    if compiling:
        calls[COMPILED] = torch.compile(case.torch, dynamic=False, options=case.options)
    if case.liger is not None:
        calls[LESS if case.kernel == "rope" else LIGER] = _late(case.liger)
    return calls


def ratio(timed: dict[str, dict[str, Any]]) -> float | None:
    """The fastest other's seconds ÷ ours: above 1 ours wins, below it loses. None without ours."""
    others = [one["seconds"] for name, one in timed.items() if name not in (OURS, LESS) and "seconds" in one]
    ours = timed[OURS].get("seconds")
    return min(others) / ours if ours and others else None


def cases(
    shape: Shape, dtype: torch.dtype, device: torch.device, tokens: Sequence[int], long: Sequence[int]
) -> Iterator[Case]:
    """Every kernel at a model's sizes."""
    generator = torch.Generator(device=device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)

    for count in (*tokens, *long):
        yield _norm(count, shape.hidden, random)
        yield _gated(count, shape.intermediate, random)
        yield _rope(count, shape, random)
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "qkv": (heads + 2 * kv, shape.hidden, False),
        "out + residual": (shape.hidden, heads, True),
        "gate, up": (2 * shape.intermediate, shape.hidden, False),
        "down + residual": (shape.hidden, shape.intermediate, True),
        "logits": (shape.vocab, shape.hidden, False),
    }
    for name, (rows, columns, adds) in weights.items():
        for count in tokens:
            yield _linear(name, count, rows, columns, adds, random)


def _norm(tokens: int, hidden: int, random: Callable[..., Tensor]) -> Case:
    weight = random(hidden)
    each = tokens * hidden * weight.element_size()

    def liger() -> Callable[..., Any]:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        return lambda x, add: LigerFusedAddRMSNormFunction.apply(x, add, weight, EPS, 0.0, "llama", False)

    return Case(
        "rms_norm", f"+ residual, {hidden}", tokens, 4 * each + weight.nbytes, 2 * each,
        lambda: (random(tokens, hidden), random(tokens, hidden)),
        lambda x, add: rms_norm.rms_norm(x, weight, EPS, add=add),
        lambda x, add: rms_norm.reference(x, weight, EPS, add=add), liger,
    )  # fmt: skip


def _gated(tokens: int, columns: int, random: Callable[..., Tensor]) -> Case:
    each = tokens * columns * random(1).element_size()

    def liger() -> Callable[..., Any]:
        from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction

        return lambda gate_up: LigerFusedGateUpSiLUMulFunction.apply(gate_up, False)

    return Case(
        "gated", f"silu, {columns}", tokens, 3 * each, 2 * each, lambda: (random(tokens, 2 * columns),),
        lambda gate_up: gated.gated(gate_up, "silu"), lambda gate_up: gated.reference(gate_up, "silu"), liger,
    )  # fmt: skip


def _rope(tokens: int, shape: Shape, random: Callable[..., Tensor]) -> Case:
    """Split, rotation and write to the store. Liger's kernel rotates alone, and copies what is no tensor of its own."""
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    angles = random(tokens, dim // 2).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    pages = allocate(tokens // 16 + 2, 16, kv_heads, dim, cos.dtype, cos.device)
    slots = torch.arange(16, 16 + tokens, device=cos.device)

    def reference(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = rope.reference(qkv, cos, sin, heads=heads, kv_heads=kv_heads)
        write(pages, slots, k, v)  # no token of a graph's padding among them, so the host need not look
        return q, k, v

    def liger() -> Callable[..., Any]:
        from liger_kernel.ops.rope import LigerRopeFunction

        def rotated(qkv: Tensor) -> Tensor:
            merged = qkv.view(1, tokens, heads + 2 * kv_heads, dim).transpose(1, 2)
            q, k = merged[:, :heads], merged[:, heads : heads + kv_heads]
            turned: Tensor = LigerRopeFunction.apply(q, k, cos[None], sin[None])[0]
            return turned[0].transpose(0, 1)

        return rotated

    element = cos.element_size()
    projection = tokens * (heads + 2 * kv_heads) * dim * element
    written = tokens * (heads + 3 * kv_heads) * dim * element  # q, k, and k and v to the store
    return Case(
        "rope", f"{heads} + 2·{kv_heads} heads", tokens,
        projection + written + 2 * cos.nbytes + slots.nbytes, projection,
        lambda: (random(tokens, (heads + 2 * kv_heads) * dim),),
        lambda qkv: rope.rope_write(
            qkv, cos, sin, heads=heads, kv_heads=kv_heads, pages=pages, slots=slots
        ), reference, liger,
    )  # fmt: skip


def _linear(
    name: str, tokens: int, rows: int, columns: int, adds: bool, random: Callable[..., Tensor]
) -> Case:
    x, add = random(tokens, columns), random(tokens, rows) if adds else None
    element = x.element_size()
    weight = rows * columns * element
    moved = weight + tokens * (columns + rows * (2 if adds else 1)) * element
    counters = linear.arrival_counters(rows, x.device)
    tuned = {"coordinate_descent_tuning": True} if tokens == 1 and x.is_cuda else None
    return Case(
        "linear", name, tokens, moved, weight, lambda: (random(rows, columns) / columns**0.5,),
        lambda w: linear.linear(x, w, add=add, counters=counters),
        lambda w: linear.reference(x, w, add=add), options=tuned,
    )  # fmt: skip


def _late(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A contender whose package is imported at its first call: its absence is then that contender's failure."""
    made: list[Callable[..., Any]] = []

    def call(*inputs: Any) -> Any:
        if not made:
            made.append(make())
        return made[0](*inputs)

    return call


def _line(entry: dict[str, Any]) -> str:
    said = ", ".join(
        f"{name} {duration(one['seconds'])} ({one['share']:.0%})" if "seconds" in one else f"{name} –"
        for name, one in entry["contenders"].items()
    )
    return said if entry["ratio"] is None else f"{said}; {entry['ratio']:.2f} × the fastest other"
