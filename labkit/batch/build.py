"""An engine for a model: how much memory its KV cache may take, and everything put together."""

from __future__ import annotations

from functools import partial
from typing import Any

from labkit.batch import checks
from labkit.batch.engine import Engine
from labkit.batch.model_runner import ModelRunner
from labkit.batch.policy import Continuous, Policy
from labkit.batch.sampling import SEEDS
from labkit.batch.scheduler import Scheduler
from labkit.cache.attention import position_limit
from labkit.cache.host_store import HostStore
from labkit.cache.paged import PagedCache, token_bytes
from labkit.errors import LabkitError
from labkit.fuse.buckets import MOST_TOKENS
from labkit.fuse.graphs import StepGraphs
from labkit.models import LM
from labkit.models.memory import GIB, free_bytes
from labkit.profile import shape_of

GPU_SHARE, CPU_SHARE = 0.9, 0.25
"""Of the free memory: a GPU is the engine's alone, a laptop's memory is not."""


def workspace_bytes(lm: LM, rows: int, step_tokens: int) -> int:
    """What a step needs beside weights and KV [B]: activations of its tokens, and logits of its rows.

    Per token the residual stream, its norm, Q, K, V and the attention's output, and the two or three widths of
    the MLP live at once; per row the logits in the model's precision and three times in float64, for the
    sampler.
    """
    shape = shape_of(lm.config)
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    token = (4 * shape.hidden + heads + 3 * shape.intermediate) * lm.dtype.itemsize
    return step_tokens * token + rows * shape.vocab * (lm.dtype.itemsize + 3 * 8)


def blocks_that_fit(lm: LM, rows: int, step_tokens: int, block_size: int, *, quantised: bool = False) -> int:
    """How many blocks the free memory holds, and no more than `rows` texts of full length could use.

    Raises:
        LabkitError: not one.
    """
    share = CPU_SHARE if lm.device.type == "cpu" else GPU_SHARE
    free = int(free_bytes(lm.device) * share) - workspace_bytes(lm, rows, step_tokens)
    size = block_size * token_bytes(lm, quantised=quantised)
    if free < 2 * size:
        raise LabkitError(
            f"{max(free, 0) / GIB:.2f} GiB are left for the KV cache of {lm.name}, less than two blocks.",
            "Take a smaller model, fewer rows, fewer tokens a step, or smaller blocks.",
        )
    longest = position_blocks(lm, block_size)
    fits = free // size - 1
    return fits if longest is None else min(fits, rows * longest)


def position_blocks(lm: LM, block_size: int) -> int | None:
    """Blocks of a row as long as the model's positions go; None where they do not end."""
    positions = position_limit(lm.config)
    return None if positions is None else -(-positions // block_size)


def engine_for(
    lm: LM,
    policy: Policy | None = None,
    *,
    blocks: int | None = None,
    block_size: int = 16,
    rows: int = 256,
    step_tokens: int = 2048,
    quantised: bool = False,
    share: bool = True,
    host: HostStore | None = None,
    graphs: bool = False,
    seed: int = 0,
    **scheduling: Any,
) -> Engine:
    """An engine that owns the model's attention until it is closed; use it in a `with`.

    Args:
        policy: when rows may join; Continuous() by default.
        blocks: size of the KV pool; as many as fit into memory by default.
        block_size: tokens in a block.
        rows: rows at once at most; memory may allow fewer.
        step_tokens: tokens in a step at most.
        quantised: keep keys and values in int8.
        share: let requests find the prefixes that others computed.
        host: keeps prefixes that the KV pool has no room for.
        graphs: replay steps from CUDA graphs (labkit/fuse/graphs.py), captured now; has no effect without a GPU.
        seed: of draws whose request has none.
        scheduling: head_start, proposer and guesses, as Scheduler takes them.

    Raises:
        LabkitError: too little memory, sizes that are none, or a model whose attention cannot be replaced.
    """
    checks.kind("The model", lm, LM, "Give what labkit.load(…) returns.")
    for name, size in {
        "rows": rows,
        "step_tokens": step_tokens,
        "block_size": block_size,
        "blocks": blocks,
    }.items():
        if size is not None:
            checks.count(f"Engine: {name}", size, 1)
    if unknown := sorted(set(scheduling) - {"head_start", "proposer", "guesses"}):
        raise LabkitError(f"An engine has no setting {unknown[0]}.", "See the arguments of engine_for.")
    rows = rows if blocks is None else min(rows, blocks)
    if blocks is None:
        held = step_tokens + (MOST_TOKENS if graphs else 0)  # graphs keep memory of their own
        blocks = blocks_that_fit(lm, rows, held, block_size, quantised=quantised)
    cache = PagedCache(lm, blocks, block_size, quantised=quantised, share=share, host=host)
    scheduler = Scheduler(
        cache.tables, policy or Continuous(), rows=rows, step_tokens=step_tokens, **scheduling
    )
    about: dict[str, Any] = {
        "tokenizer": lm.tokenizer,
        "eos": eos_ids(lm),
        "positions": position_limit(lm.config),
        "vocab": shape_of(lm.config).vocab,
        "seed": checks.count("Engine: seed", seed, *SEEDS),
    }
    longest = min(filter(None, (blocks, position_blocks(lm, block_size))))
    capture = partial(StepGraphs, lm, cache.layers, rows=rows, step_tokens=step_tokens, width=longest)
    runner = ModelRunner(lm, cache, rows, graphs=capture if graphs and lm.device.type == "cuda" else None)
    return Engine(runner, scheduler, **about)  # from here on the model's attention is ours


def eos_ids(lm: LM) -> tuple[int, ...]:
    """Tokens that end a text: the generation settings' own, else the configuration's, else the tokenizer's."""
    for source in (getattr(lm.model, "generation_config", None), lm.config, lm.tokenizer):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return tuple(found) if isinstance(found, list | tuple) else (int(found),)
    return ()
