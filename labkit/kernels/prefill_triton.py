"""The Triton kernel of attention over packed chunks; labkit/kernels/prefill.py explains and launches it."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether this kernel was built for Triton's interpreter, which runs it on the CPU one program at a time."""


@triton.jit
def _find(starts, visible, tile, tokens, rows, TOKENS: tl.constexpr, ROWS_PAD: tl.constexpr):
    """Row of a tile, its first query, the end of the row's queries, and the row's visible length.

    Row r's tiles begin at number starts[r] // TOKENS + r: that is never less than all rows before it need, grows
    with r, and wants no sum over rows. What lies behind the last row is padding, a row that sees nothing.
    """
    index = tl.arange(0, ROWS_PAD)
    ends = tl.load(starts + 1 + index, mask=index < rows, other=0)
    row = tl.sum(((ends // TOKENS + index + 1 <= tile) & (index < rows)).to(tl.int32), 0)
    start = tl.load(starts + row)
    end = tl.load(starts + row + 1, mask=row < rows, other=0)
    end = tl.where(row < rows, end, tokens)
    n = tl.load(visible + row, mask=row < rows, other=0)
    return row, start + (tile - start // TOKENS - row) * TOKENS, end, n


@triton.jit
def _stretches(earliest, high, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """Where the walk of a tile whose first query stands at `earliest` begins, and where its middle begins and ends.

    The middle consists of whole tiles, and every query sees all of their keys.
    """
    low = 0
    full_start = 0
    if WINDOW > 0:
        low = tl.maximum(earliest - WINDOW + 1, 0)
        full_start = tl.cdiv(tl.maximum(high - WINDOW, 0), TILE) * TILE
    full_stop = tl.maximum(earliest + 1, 0) // TILE * TILE
    return low, full_start, tl.maximum(full_stop, full_start)


@triton.jit
def _block(ids, begin, end, BLOCK: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Block ids of the keys of a tile that lie before `end`: [TILE], or one where a block holds whole tiles."""
    place = tl.arange(0, TILE)
    if BLOCK % TILE == 0:
        block = tl.load(ids + begin // BLOCK, mask=begin < end, other=0)
    else:
        if TILE % BLOCK == 0:
            where = begin // BLOCK + place // BLOCK
        else:
            where = (begin + place) // BLOCK
        if MASKED:
            block = tl.load(ids + where, mask=begin + place < end, other=0)
        else:
            block = tl.load(ids + where, mask=begin < end, other=0)
    return block


@triton.jit
def _slot(block, begin, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """int64 slots [TILE] of a tile's keys."""
    place = tl.arange(0, TILE)
    if BLOCK % TILE == 0:
        offset = begin % BLOCK + place
    elif TILE % BLOCK == 0:
        offset = place % BLOCK
    else:
        offset = (begin + place) % BLOCK
    return block.to(tl.int64) * BLOCK + offset


@triton.jit
def _load(pages, slot, inside, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    """Keys or values [TILE, DIM_PAD] at `slot` [TILE]; zeros outside."""
    dims = tl.arange(0, DIM_PAD)
    places = (slot * (KV_HEADS * DIM))[:, None] + dims[None, :]
    if MASKED and DIM != DIM_PAD:
        tile = tl.load(pages + places, mask=inside[:, None] & (dims < DIM)[None, :], other=0)
    elif MASKED:
        tile = tl.load(pages + places, mask=inside[:, None], other=0)
    elif DIM != DIM_PAD:
        tile = tl.load(pages + places, mask=(dims < DIM)[None, :], other=0)
    else:
        tile = tl.load(pages + places)
    return tile


@triton.jit
def _walk(begin, end, acc, total, top, q, position, low, high, ids, keys, values, key_scales, value_scales, scale,
          KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK: tl.constexpr,
          TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, QUANTISED: tl.constexpr,
          STAGES: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Online softmax over keys begin … end - 1. Not MASKED: whole tiles, all of which every query sees.

    `top` is the largest score so far times `scale`, so that a weight is one multiply-add and one exp2 away from its
    score. It starts finite: a query that has seen nothing yet then gets weights of 0 instead of NaN.
    """
    place = tl.arange(0, TILE)
    block = _block(ids, begin, tl.minimum(end, high), BLOCK, TILE, MASKED)
    for at in tl.range(begin, end, TILE, num_stages=STAGES):
        key = at + place
        inside = (key >= low) & (key < high)
        slot = _slot(block, at, BLOCK, TILE)
        block = _block(ids, at + TILE, tl.minimum(end, high), BLOCK, TILE, MASKED)  # of the next tile
        k = _load(keys, slot, inside, KV_HEADS, DIM, DIM_PAD, MASKED)
        v = _load(values, slot, inside, KV_HEADS, DIM, DIM_PAD, MASKED)
        if QUANTISED:
            k = k.to(tl.float32) * tl.load(key_scales + slot * KV_HEADS, mask=inside, other=0.0)[:, None]
            v = v.to(tl.float32) * tl.load(value_scales + slot * KV_HEADS, mask=inside, other=0.0)[:, None]
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if CAP > 0:  # tanh through exp2: 1 - 2 / (1 + e^2x)
            scores = CAP - 2 * CAP / (1 + tl.exp2(scores * scale))
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        if CAP > 0:
            higher = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
        else:
            higher = tl.maximum(top, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * fade[:, None], input_precision="ieee")
        top = higher
    return acc, total, top


@triton.jit(do_not_specialize=["tokens", "rows", "table_row"])  # they vary: no compilation for each
def attend_kernel(query, keys, values, key_scales, value_scales, table, starts, visible, out, scale, tokens, rows,
                  table_row, query_row, query_head, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
                  DIM_PAD: tl.constexpr, BLOCK: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
                  ROWS_PAD: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, QUANTISED: tl.constexpr,
                  WIDE: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """One KV head and one tile of TILE_Q // GROUP queries, each with the GROUP heads that share the KV head."""
    TOKENS: tl.constexpr = TILE_Q // GROUP
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the longest first: a row's last queries see most
    row, first, end, n = _find(starts, visible, tile, tokens, rows, TOKENS, ROWS_PAD)
    if first >= end:
        return
    last = tl.minimum(first + TOKENS, end) - 1
    member, dims = tl.arange(0, TILE_Q), tl.arange(0, DIM_PAD)
    token = first + member // GROUP
    heads = head * GROUP + member % GROUP
    own = (member < TOKENS * GROUP) & (token <= last)
    here = own[:, None] & (dims < DIM)[None, :]
    q = tl.load(query + token.to(tl.int64)[:, None] * query_row + heads[:, None] * query_head + dims[None, :],
                mask=here, other=0.0)  # fmt: skip
    if WIDE:
        q = q.to(tl.float32)
    position = n - end + token
    high = tl.maximum(n - end + last + 1, 0)  # no query of the tile sees this key
    low, full_start, full_stop = _stretches(n - end + first, high, WINDOW, TILE_K)
    ids = table + row.to(tl.int64) * table_row
    keys, values = keys + head * DIM, values + head * DIM
    if QUANTISED:
        key_scales, value_scales = key_scales + head, value_scales + head
    acc = tl.zeros((TILE_Q, DIM_PAD), tl.float32)
    total = tl.zeros((TILE_Q,), tl.float32)
    top = tl.full((TILE_Q,), -3.4028234663852886e38, tl.float32)
    if WINDOW > 0:
        acc, total, top = _walk(low // TILE_K * TILE_K, tl.minimum(full_start, high), acc, total, top, q, position,
                                low, high, ids, keys, values, key_scales, value_scales, scale, KV_HEADS, DIM,
                                DIM_PAD, BLOCK, TILE_K, WINDOW, CAP, QUANTISED, STAGES, True)  # fmt: skip
    acc, total, top = _walk(full_start, full_stop, acc, total, top, q, position, low, high, ids, keys, values,
                            key_scales, value_scales, scale, KV_HEADS, DIM, DIM_PAD, BLOCK, TILE_K, WINDOW, CAP,
                            QUANTISED, STAGES, False)  # fmt: skip
    acc, total, top = _walk(full_stop, high, acc, total, top, q, position, low, high, ids, keys, values, key_scales,
                            value_scales, scale, KV_HEADS, DIM, DIM_PAD, BLOCK, TILE_K, WINDOW, CAP, QUANTISED,
                            STAGES, True)  # fmt: skip
    sees = own & (
        position >= 0
    )  # what sees nothing gives zeros; weights that are all 0 are a fault and give NaN
    result = tl.where(sees[:, None], acc / tl.where(sees, total, 1.0)[:, None], 0.0)
    target = (token.to(tl.int64) * (KV_HEADS * GROUP) + heads)[:, None] * DIM + dims[None, :]
    tl.store(out + target, result.to(out.dtype.element_ty), mask=here)
