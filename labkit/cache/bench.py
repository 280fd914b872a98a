"""`labkit bench cache`: what paging saves, what a shared prefix saves, and how fast attention reads the pages.

Cost figures hold for the shape that is measured. What keys and values compress to is a property of a trained
model: that part is measured on labcoder's own, whatever model the rest is measured on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit.cache.attention import install, remove
from labkit.cache.host_store import HostStore
from labkit.cache.kv_study import compression, kernel_rates
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import PagedCache, token_bytes
from labkit.cache.room import BLOCK, CONTEXT, room, throughput
from labkit.models import LM, load
from labkit.profile import read_bandwidth
from labkit.quality import evaluation_text
from labkit.timing import compare, duration

REPEATS = 5
LONG = 4096
"""A prefix whose prefill takes longer than launching a step, on any device [tokens]."""


def run(model: str = "labcoder", device: str | None = None) -> dict[str, Any]:
    """Measure, print a short table and a line of JSON, and return all figures."""
    lm = load(model, device=device)
    text = lm.encode(evaluation_text("fixed"))[0].tolist()
    bandwidth = read_bandwidth(lm.device)
    space = room(lm)
    figures = {
        "model": lm.name,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "token_bytes": {"plain": token_bytes(lm), "int8": token_bytes(lm, quantised=True)},
        "room": space,
        "room_throughput": throughput(lm, space["largest_batch"]) if lm.device.type == "cuda" else {},
        "prefix": prefix(lm, text),
        "long_prefix": prefix(lm, text, LONG),
        "host_tier": prefix(lm, text, repeats=2, host=HostStore(2**40)),
        "bandwidth": bandwidth,
        "kernel": kernel_rates(lm.device, bandwidth) if lm.device.type == "cuda" else [],
        "compression": compression(),
    }
    _print(figures)
    return figures


@torch.inference_mode()
def prefix(
    lm: LM,
    text: list[int],
    shared: int = 1024,
    own: int = 64,
    *,
    repeats: int = REPEATS,
    warmup: int = 1,
    host: HostStore | None = None,
) -> dict[str, Any]:
    """Time to the first token of prompts that share `shared` tokens: nothing of it cached, and all of it.

    Cold and warm take turns, and with a store a third kind, `host`: all of it comes back from there. (That it
    went there, packed, is not timed.) `text` is read again where it is too short.
    """
    text = text * -(-(shared + own + 4 * (repeats + warmup)) // len(text))
    kinds = ("cold", "warm") if host is None else ("cold", "warm", "host")
    blocks = 2 * (shared + own) // BLOCK + 2
    caches = {kind: PagedCache(lm, blocks, BLOCK, host=host if kind == "host" else None) for kind in kinds}
    turns, found = itertools.count(), dict[str, int]()

    def first(kind: str) -> torch.Tensor:
        turn = next(turns)
        tokens = text[:shared] + text[shared + turn : shared + turn + own]
        cache = caches[kind]
        found[kind] = start = cache.open(0, tokens)
        logits = forward(lm, cache.pack([Chunk(0, start, tokens[start:])])).argmax(-1)
        cache.commit(0, tokens[:shared])
        cache.release(0)
        if kind != "warm":
            cache.tables.pool.drop_cached()
        return logits

    calls: dict[str, Callable[[], object]] = {kind: partial(first, kind) for kind in kinds}
    install(lm.model)
    try:
        timed = compare(calls, device=lm.device, warmup=warmup, repeats=repeats)
    finally:
        remove(lm.model)
        for cache in caches.values():
            cache.close()
    return {
        "shared": shared,
        "own": own,
        "found": found,
        "ttft": {kind: one.median for kind, one in timed.items()},
        "runs": timed,
    }


def _print(figures: dict[str, Any]) -> None:
    space = figures["room"]
    print(f"{figures['model']}, KV {figures['token_bytes']['plain']:,} B a token")
    print(f"{space['rows']} conversations of up to {CONTEXT:,} tokens:")
    for kind in ("contiguous", "paged"):
        size, waste = space[f"{kind}_bytes"] / 1e9, space[f"{kind}_waste"]
        most = space["largest_batch"][kind]
        print(f"  {kind:<11} {size:8.2f} GB, {waste:6.1%} of it empty; largest batch {most}")
    for kind, one in figures["room_throughput"].items():
        print(f"  decoding {one['rows']} of them, {kind}: {one['tokens_per_second']:,.0f} tokens/s")
    for one in (figures["prefix"], figures["long_prefix"], figures["host_tier"]):
        said = ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in one["ttft"].items())
        print(f"TTFT with {one['shared']:,} shared tokens: {said}")
    for one in figures["kernel"]:
        print(f"  {one['shape']:<22} {one['rate'] / 1e9:7,.0f} GB/s  {one['share']:.0%} of measured reading")
    small = figures["compression"]["int8"]
    print(
        f"int8 KV of {small['model']}: {small['bytes_share']:.0%} of the bytes, KL {small['kl']:.2g} nats a token"
    )
    for one in figures["compression"]["lossless"]:
        print(f"  lossless, {one['codec']:<16} {one['ratio']:.3f} : 1 (restored bit for bit: {one['exact']})")
    headline = {
        "bench": "cache",
        "model": figures["model"],
        "ttft_s": {one["shared"]: one["ttft"] for one in (figures["host_tier"], figures["long_prefix"])},
        "largest_batch": space["largest_batch"],
        "kernel_share": {one["shape"]: round(one["share"], 3) for one in figures["kernel"]},
    }
    print(json.dumps(headline))
