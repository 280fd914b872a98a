"""The two Triton kernels of paged decode; labkit/kernels/paged_decode.py explains and launches them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def _share(n, shares, WINDOW: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    """First visible position, and tokens of one share: an equal part in whole tiles, and LEAST or more."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(n - WINDOW, 0)
    share = tl.cdiv(tl.cdiv(n - first, shares), TILE) * TILE
    return first, tl.maximum(share, LEAST)


@triton.jit
def _load(pages, scales, slot, inside, head, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
          QUANTISED: tl.constexpr):  # fmt: skip
    """Keys or values [TILE, DIM_PAD] of one head at `slot` [TILE], and their scales [TILE]; zeros outside."""
    dims = tl.arange(0, DIM_PAD)
    places = (slot * KV_HEADS + head)[:, None] * DIM + dims[None, :]
    mask = inside[:, None]
    if DIM != DIM_PAD:
        mask = mask & (dims < DIM)[None, :]
    tile = tl.load(pages + places, mask=mask, other=0)
    scale = inside.to(tl.float32)
    if QUANTISED:
        scale = tl.load(scales + slot * KV_HEADS + head, mask=inside, other=0.0)
    return tile, scale


@triton.jit
def _bend(scores, scale, CAP: tl.constexpr):
    """Scores in base 2: scaled, and soft-capped by CAP · tanh if CAP > 0. (tanh through exp2: 1 - 2 / (1 + e^2x).)"""
    scores = scores * scale
    if CAP > 0:
        scores = CAP - 2 * CAP / (1 + tl.exp2(scores))
    return scores


@triton.jit
def _weigh(partial, sums, place, shares, used, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
           SHARES_PAD: tl.constexpr):  # fmt: skip
    """One head of one row [DIM_PAD]: Σ of its first `used` shares weighted by 2^sums."""
    part, dims = tl.arange(0, SHARES_PAD), tl.arange(0, DIM_PAD)
    there = part < used
    log = tl.load(sums + place * shares + part, mask=there, other=float("-inf"), cache_modifier=".cg")
    top = tl.max(log, 0)
    weights = tl.exp2(log - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, 0)
    parts = tl.load(partial + (place * shares + part)[:, None] * DIM + dims[None, :],
                    mask=there[:, None] & (dims < DIM)[None, :], other=0.0, cache_modifier=".cg")  # fmt: skip
    return tl.sum(parts * weights[:, None], 0) / tl.where(total == 0, 1.0, total)


@triton.jit(do_not_specialize=["table_row", "shares"])  # they vary from step to step: no compilation for each
def attend_kernel(query, keys, values, key_scales, value_scales, table, visible, out, partial, sums, counters, scale,
                  query_row, query_head, table_row, shares, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
                  ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK: tl.constexpr,
                  TILE: tl.constexpr, LEAST: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
                  QUANTISED: tl.constexpr, SPLIT: tl.constexpr, COUNTED: tl.constexpr, SHARES_PAD: tl.constexpr,
                  DOT: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One (KV head, share, row). Writes the result; if SPLIT its share, [heads, shares, DIM] and log2-sums.

    With COUNTED the program that comes last of a row and KV head weighs all shares, and leaves the counter at zero.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, part, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = tl.load(visible + row)
    first, share = _share(n, shares, WINDOW, TILE, LEAST)
    start = first + part * share
    stop = tl.minimum(start + share, n)
    member, dims, place = tl.arange(0, ROWS), tl.arange(0, DIM_PAD), tl.arange(0, TILE)
    ids = table + row * table_row
    block = tl.load(ids + (start + place) // BLOCK, mask=start + place < stop, other=0)
    if PDL:  # lengths and tables are older than the step; the query and the newest key are not
        tl.extra.cuda.gdc_wait()
    if SPLIT:
        if (start >= stop) & ((part > 0) | (not COUNTED)):  # a row of no tokens still gets its zeros
            return
    own = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    heads = head * GROUP + member
    q = tl.load(query + row * query_row + heads[:, None] * query_head + dims[None, :], mask=own, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    # DOT: one softmax for each head of the group. Otherwise: one for each place in the tile.
    LANES: tl.constexpr = ROWS if DOT else TILE
    top = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    acc = tl.zeros((LANES, DIM_PAD), tl.float32)
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        position = begin + place
        inside = position < stop
        slot = block.to(tl.int64) * BLOCK + position % BLOCK
        block = tl.load(
            ids + (position + TILE) // BLOCK, mask=position + TILE < stop, other=0
        )  # of the next tile
        k, key_scale = _load(keys, key_scales, slot, inside, head, KV_HEADS, DIM, DIM_PAD, QUANTISED)
        v, value_scale = _load(values, value_scales, slot, inside, head, KV_HEADS, DIM, DIM_PAD, QUANTISED)
        if DOT:
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
            if QUANTISED:
                scores = scores * key_scale[None, :]
            scores = tl.where(inside[None, :], _bend(scores, scale, CAP), float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(top - higher)
            total = total * fade + tl.sum(weights, 1)
            if QUANTISED:
                weights = weights * value_scale[None, :]
            acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * fade[:, None], input_precision="ieee")
        else:
            scores = tl.sum(k.to(tl.float32) * q.to(tl.float32), 1) * key_scale
            scores = tl.where(inside, _bend(scores, scale, CAP), float("-inf"))
            higher = tl.maximum(top, scores)
            least = tl.where(higher == float("-inf"), 0.0, higher)  # a place that has seen nothing yet
            weights = tl.exp2(scores - least)
            fade = tl.exp2(top - least)
            total = total * fade + weights
            acc = acc * fade[:, None] + (weights * value_scale)[:, None] * v.to(tl.float32)
        top = higher
    if not DOT:  # merge the places of the tile into one
        higher = tl.max(top, 0)
        fade = tl.exp2(top - tl.where(higher == float("-inf"), 0.0, higher))
        acc = tl.sum(acc * fade[:, None], 0)[None, :]
        total = tl.sum(total * fade, 0) + tl.zeros((ROWS,), tl.float32)
        top = higher + tl.zeros((ROWS,), tl.float32)
    result = acc / tl.where(total == 0, 1.0, total)[:, None]  # a row of no tokens: zeros
    target = (row * KV_HEADS * GROUP + heads) * shares + part
    if SPLIT:
        # a reader on another processor must find the share, so it is written past this processor's own cache
        tl.store(sums + target, top + tl.log2(total), mask=member < GROUP, cache_modifier=".cg")
        tl.store(partial + target[:, None] * DIM + dims[None, :], result, mask=own, cache_modifier=".cg")
        if COUNTED:
            counter = counters + row * KV_HEADS + head
            used = tl.maximum(tl.cdiv(n - first, share), 1)
            tl.debug_barrier()  # every thread has written before one of them counts
            before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            if before == used - 1:
                tl.debug_barrier()  # and none reads before the count is known
                for one in range(GROUP):
                    its = (row * KV_HEADS + head) * GROUP + one
                    whole = _weigh(partial, sums, its, shares, used, DIM, DIM_PAD, SHARES_PAD)
                    tl.store(out + its * DIM + dims, whole, mask=dims < DIM)
                tl.store(counter, 0)
    else:
        tl.store(out + target[:, None] * DIM + dims[None, :], result, mask=own)


@triton.jit(do_not_specialize=["shares"])
def combine_kernel(partial, sums, visible, out, shares, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
                   SHARES_PAD: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr,
                   WINDOW: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One (head, row): the shares that the row's length reaches, weighed together in a launch of its own."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(1).to(tl.int64)
    place = row * tl.num_programs(0) + tl.program_id(0)
    n = tl.load(visible + row)
    first, share = _share(n, shares, WINDOW, TILE, LEAST)
    dims = tl.arange(0, DIM_PAD)
    whole = _weigh(partial, sums, place, shares, tl.cdiv(n - first, share), DIM, DIM_PAD, SHARES_PAD)
    tl.store(out + place * DIM + dims, whole, mask=dims < DIM)
