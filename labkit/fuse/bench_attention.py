"""Prefill attention over the paged store beside torch's own fused attention, which reads contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.fuse.contest import contest
from labkit.kernels.pages import allocate
from labkit.kernels.prefill import varlen_attention
from labkit.profile.formulas import attended_pairs, attention_flops

OURS = "labkit, paged"
BACKENDS = {"torch, flash": SDPBackend.FLASH_ATTENTION, "torch, cuDNN": SDPBackend.CUDNN_ATTENTION}
HEADS = {"MHA": (32, 32), "GQA": (32, 8)}
DIM, BLOCK = 128, 16


def prefill(
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[tuple[int, int]],
    *,
    repeats: int = 20,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Causal attention of `rows` prompts of `tokens` each, packed (ours) or as a batch (torch's).

    Args:
        sizes: (rows, tokens).

    Returns:
        One entry a shape: see labkit.batch.bench_fuse.
    """
    found = []
    for rows, tokens in sizes:
        for name, (heads, kv_heads) in HEADS.items():
            inputs = [_inputs(rows, tokens, heads, kv_heads, device, dtype, seed) for seed in range(2)]
            calls: dict[str, Callable[..., Any]] = {OURS: partial(_ours, rows)}
            calls |= {each: partial(_torch, backend) for each, backend in BACKENDS.items()}
            timed = contest(
                calls, inputs, device, baseline="torch, flash", repeats=repeats,
                calls_each=16 if device.type == "cuda" else 0,
            )  # fmt: skip
            flops = rows * attention_flops(heads, DIM, attended_pairs(tokens))
            entry = {"shape": f"{name}, {rows} × {tokens:,}", "rows": rows, "tokens": tokens, "heads": heads,
                     "kv_heads": kv_heads, "dim": DIM, "flops": flops}  # fmt: skip
            found.append({**entry, **_judged(timed, flops)})
            say(f"  {entry['shape']:<16}{_line(found[-1])}")
    return found


def _inputs(
    rows: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> tuple[Any, ...]:
    """(q packed, pages, table, starts, visible, q, k, v as a batch): the same numbers twice.

    The blocks of the store are shuffled, as they are in a running engine.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def random(count: int) -> Tensor:
        return torch.empty(rows, tokens, count, DIM, dtype=dtype, device=device).normal_(generator=generator)

    q, k, v = random(heads), random(kv_heads), random(kv_heads)
    blocks = -(-tokens // BLOCK)
    table = torch.randperm(rows * blocks, generator=generator, device=device).view(rows, blocks)
    pages = allocate(rows * blocks, BLOCK, kv_heads, DIM, dtype, device)
    for stored, fresh in ((pages.keys, k), (pages.values, v)):
        padded = F.pad(fresh, (0, 0, 0, 0, 0, blocks * BLOCK - tokens))
        stored[table.flatten()] = padded.reshape(rows * blocks, BLOCK, kv_heads, DIM)
    starts = torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device=device)
    visible = torch.full((rows,), tokens, dtype=torch.int32, device=device)
    dense = (each.transpose(1, 2).contiguous() for each in (q, k, v))
    return (q.flatten(0, 1), pages, table.int(), starts, visible, *dense)


def _ours(
    rows: int, query: Tensor, pages: Any, table: Tensor, starts: Tensor, visible: Tensor, *_: Tensor
) -> Tensor:
    out = varlen_attention(query, pages, table, starts, visible, scale=DIM**-0.5)
    return out.unflatten(0, (rows, -1))


def _torch(backend: SDPBackend, *inputs: Any) -> Tensor:
    q, k, v = inputs[-3:]
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


def _judged(timed: dict[str, dict[str, Any]], flops: int) -> dict[str, Any]:
    """Rates [FLOP/s], and ours ÷ the faster of torch's."""
    for one in timed.values():
        if "seconds" in one:
            one["rate"] = flops / one["seconds"]
    torchs = [timed[name]["rate"] for name in BACKENDS if "rate" in timed[name]]
    ours = timed[OURS].get("rate")
    return {"contenders": timed, "ratio": ours / max(torchs) if ours and torchs else None}


def _line(entry: dict[str, Any]) -> str:
    said = [
        f"{name} {one['rate'] / 1e12:,.3g} TFLOP/s"
        if "rate" in one
        else f"{name} – ({one['unavailable'][:60]})"
        for name, one in entry["contenders"].items()
    ]
    ratio = "" if entry["ratio"] is None else f"; {entry['ratio']:.2f} × the faster"
    return ", ".join(said) + ratio
