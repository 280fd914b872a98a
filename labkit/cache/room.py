"""How many conversations fit into a device's memory, contiguous and paged, and what the larger batch gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from labkit.cache.attention import install, remove
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import ContiguousCache, PagedCache, token_bytes
from labkit.cache.tables import BlockTables
from labkit.models import LM
from labkit.models.memory import free_bytes
from labkit.timing import measure

CONTEXT = 8192
BLOCK = 16
USABLE = 0.9
"""Of the free memory: the rest is for activations."""


def lengths_of(rows: int, seed: int = 0) -> list[int]:
    """Lengths of `rows` conversations under an 8k limit: evenly spaced from 64 tokens to the limit, shuffled.

    Even spacing makes the mean the same for few rows and for many.
    """
    lengths = [round(64 + (CONTEXT - 64) * (row + 0.5) / rows) for row in range(rows)]
    random.Random(seed).shuffle(lengths)
    return lengths


def room(lm: LM) -> dict[str, Any]:
    """Memory of the same conversations contiguous and paged, and how many of them fit into what is free."""
    per_token, free = token_bytes(lm), int(free_bytes(lm.device) * USABLE)
    whole = CONTEXT * per_token
    rows = max(1, min(64, free // whole))
    tables = BlockTables(rows * CONTEXT // BLOCK, BLOCK, share=False)
    for row, length in enumerate(lengths_of(rows)):
        tables.open(row, [0] * length)
        tables.reserve(row, length)
        tables.commit(row, length, ())
    used = sum(lengths_of(rows)) * per_token
    paged = tables.pool.used * BLOCK * per_token
    many = lengths_of(1024)
    mean = sum(map(tables.blocks_for, many)) * BLOCK * per_token / len(many)
    return {
        "context": CONTEXT,
        "rows": rows,
        "contiguous_bytes": rows * whole,
        "paged_bytes": paged,
        "used_bytes": used,
        "contiguous_waste": 1 - used / (rows * whole),
        "paged_waste": tables.waste,
        "free_bytes": free,
        "largest_batch": {"contiguous": free // whole, "paged": int(free // mean)},
    }


def throughput(lm: LM, batches: Mapping[str, int], *, repeats: int = 10) -> dict[str, Any]:
    """Output tokens per second of one decode step over the largest batch of each cache, in its own memory.

    The conversations stand where `lengths_of` says; what they hold is zeros, which cost what text costs.

    Args:
        batches: rows of "contiguous" and "paged", as `room` found them.
    """
    lengths = lengths_of(max(batches.values()))
    blocks = sum(-(-length // BLOCK) for length in lengths[: batches["paged"]])
    caches: dict[str, Callable[[], PagedCache]] = {
        "contiguous": partial(ContiguousCache, lm, batches["contiguous"], CONTEXT),
        "paged": partial(PagedCache, lm, blocks, BLOCK, share=False),
    }
    found = {}
    for kind, make in caches.items():
        rows = batches[kind]
        timed = _step(lm, make(), lengths[:rows], repeats)
        found[kind] = {"rows": rows, "step_s": timed, "tokens_per_second": rows / timed}
    return found


@torch.inference_mode()
def _step(lm: LM, cache: PagedCache, lengths: list[int], repeats: int) -> float:
    """The median time in which every row gets one more token [s]."""
    chunks = [Chunk(row, length - 1, [1]) for row, length in enumerate(lengths)]
    for chunk in chunks:
        cache.open(chunk.row, [])
    install(lm.model)
    try:
        return measure(lambda: forward(lm, cache.pack(chunks)), device=lm.device, repeats=repeats).median
    finally:
        remove(lm.model)
        cache.layers.clear()
        if lm.device.type == "cuda":
            torch.cuda.empty_cache()
