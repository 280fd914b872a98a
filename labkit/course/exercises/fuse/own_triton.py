"""labkit's own answers to the exercises that are Triton kernels. Imported on first use: not everyone has Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def silu_mul(gate_up, out, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    """out = silu(gate) · up, one tile of one row."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    row = gate_up + token * 2 * COLUMNS
    gate = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * COLUMNS + column, gate / (1 + tl.exp(-gate)) * up, mask=inside)


@triton.jit
def tile_attention(q, k, v, out, tokens, scale, DIM: tl.constexpr, TILE: tl.constexpr):
    """Causal attention of one head: TILE queries a program, over the tiles of keys up to their own."""
    place = tl.arange(0, TILE)
    column = tl.arange(0, DIM)[None, :]
    query = tl.program_id(0) * TILE + place
    there = query[:, None] < tokens
    queries = tl.load(q + query[:, None] * DIM + column, mask=there, other=0.0).to(tl.float32)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * TILE, TILE):
        key = start + place
        given = key[:, None] < tokens
        keys = tl.load(k + key[:, None] * DIM + column, mask=given, other=0.0).to(tl.float32)
        values = tl.load(v + key[:, None] * DIM + column, mask=given, other=0.0).to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        seen = (key[None, :] <= query[:, None]) & (key[None, :] < tokens)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        old, weights = tl.exp(top - higher), tl.exp(scores - higher[:, None])
        total = total * old + tl.sum(weights, 1)
        mixed = mixed * old[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = higher
    tl.store(out + query[:, None] * DIM + column, mixed / total[:, None], mask=there)
