"""The Triton kernels of small-batch linear layers; labkit/kernels/linear.py explains and launches them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    """GELU in float32: v · Φ(v), exactly or by its tanh form. (v · (1 + tanh u) / 2 is v · sigmoid(2u).)"""
    if ACTIVATION == "gelu":
        value = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        value = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
    return value


@triton.jit
def _finish(value, bias, add, out, columns, places, mask, ACTIVATION: tl.constexpr):
    """The epilogue: activation(value + bias) + add, all in float32, rounded once on its way to out."""
    if bias is not None:
        value += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    value = _activate(value, ACTIVATION)
    if add is not None:
        value += tl.load(add + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, value, mask=mask)


@triton.jit
def _add_shares(partial, places, mask, numbers, splits):
    """Σ over the shares of K, always from the first to the last, whoever finished when."""
    total = tl.load(partial + places, mask=mask, other=0.0, cache_modifier=".cg")
    for share in range(1, splits):
        total += tl.load(partial + share * numbers + places, mask=mask, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _leave(value, bias, add, out, partial, counters, columns, places, mask, numbers, splits,
           ACTIVATION: tl.constexpr, SPLIT: tl.constexpr, COUNTED: tl.constexpr):  # fmt: skip
    """Hand over a program's sums: finished if it saw all of K, else as one share of `splits`.

    With COUNTED the program that comes last of those that share its outputs adds the shares up, and leaves
    the counter at zero for the next launch. Only the counter is atomic, and it counts whole numbers.
    """
    if SPLIT:
        # a reader on another processor must find the share, so it is written past this processor's own cache
        tl.store(partial + tl.program_id(1) * numbers + places, value, mask=mask, cache_modifier=".cg")
        if COUNTED:
            counter = counters + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
            tl.debug_barrier()  # every thread has written before one of them counts
            before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            if before == splits - 1:
                tl.debug_barrier()  # and none reads before the count is known
                total = _add_shares(partial, places, mask, numbers, splits)
                _finish(total, bias, add, out, columns, places, mask, ACTIVATION)
                tl.store(counter, 0)
    else:
        _finish(value, bias, add, out, columns, places, mask, ACTIVATION)


@triton.jit
def _share_of(K, splits, TILE: tl.constexpr):
    """Where this program starts and stops along K: shares are equal in whole tiles, the last may be shorter."""
    share = tl.cdiv(tl.cdiv(K, TILE), splits) * TILE
    start = tl.program_id(1) * share
    return start, tl.minimum(start + share, K)


@triton.jit
def _wake(PDL: tl.constexpr):
    """Let the next kernel take its places while this one still works. It waits before it reads our output."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _multiply(w, x, acc):
    return acc + w.to(tl.float32) * x.to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["splits"])
def vector_kernel(x, weight, bias, add, out, partial, counters, N, K, weight_row, splits,
                  ROWS: tl.constexpr, TILE: tl.constexpr, EVEN: tl.constexpr, ACTIVATION: tl.constexpr,
                  SPLIT: tl.constexpr, COUNTED: tl.constexpr, STAGES: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    """One token. Program (block, share): ROWS rows of the weight, walked along K, TILE columns at a time.

    Every place of the tile keeps a float32 sum of its own, so that no thread waits for another inside the loop;
    they are added up once at the end. EVEN: K is a multiple of TILE.
    """
    _wake(PDL)
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(first, N - 1).to(tl.int64)  # rows past the end read the last one again: no masks inside
    column = tl.arange(0, TILE)
    start, stop = _share_of(K, splits, TILE)
    whole = start + (stop - start) // TILE * TILE
    w_places = weight + row[:, None] * weight_row + column[None, :]
    acc = tl.zeros((ROWS, TILE), tl.float32)
    if PDL:  # weights do not depend on the kernel before: read the first of them while it ends
        inside = start + column < stop
        w = tl.load(w_places + start, mask=inside[None, :], other=0.0)
        tl.extra.cuda.gdc_wait()
        acc = _multiply(w, tl.load(x + start + column, mask=inside, other=0.0), acc)
        start += TILE
    for begin in tl.range(start, whole, TILE, num_stages=STAGES):
        w = tl.load(w_places + begin, eviction_policy="evict_first")
        acc = _multiply(w, tl.load(x + begin + column), acc)
    if not EVEN:
        begin = tl.maximum(start, whole)
        inside = begin + column < stop
        w = tl.load(w_places + begin, mask=inside[None, :], other=0.0)
        acc = _multiply(w, tl.load(x + begin + column, mask=inside, other=0.0), acc)
    _leave(tl.sum(acc, 1), bias, add, out, partial, counters, first, first, first < N, N, splits,
           ACTIVATION, SPLIT, COUNTED)  # fmt: skip


@triton.jit
def _dot(w_places, x_places, acc, w_mask, x_mask, WIDE: tl.constexpr):
    """acc [ROWS, TOKENS] + w [ROWS, TILE] · x [TOKENS, TILE]ᵀ. WIDE: in float32 (exact, not TF32)."""
    w = tl.load(w_places, mask=w_mask, other=None if w_mask is None else 0.0)
    x = tl.load(x_places, mask=x_mask, other=0.0)
    if WIDE:
        w, x = w.to(tl.float32), x.to(tl.float32)
    return tl.dot(w, tl.trans(x), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens", "splits"])  # they vary from step to step: no compilation for each
def tile_kernel(x, weight, bias, add, out, partial, counters, N, K, weight_row, splits, tokens, x_row,
                ROWS: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr, EVEN: tl.constexpr,
                WIDE: tl.constexpr, ACTIVATION: tl.constexpr, SPLIT: tl.constexpr, COUNTED: tl.constexpr,
                STAGES: tl.constexpr):  # fmt: skip
    """A few tokens, padded to TOKENS. Program (block, share): ROWS rows of the weight by all tokens.

    The weight is the tall operand of the tensor cores and the tokens the narrow one: out is computed transposed.
    Sums of a token are made in the same order whatever `tokens` is.
    """
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(first, N - 1).to(tl.int64)
    token, column = tl.arange(0, TOKENS), tl.arange(0, TILE)
    start, stop = _share_of(K, splits, TILE)
    whole = start + (stop - start) // TILE * TILE
    w_places = weight + row[:, None] * weight_row + column[None, :]
    x_places = x + token[:, None] * x_row + column[None, :]
    used = (token < tokens)[:, None]  # padding costs no reading
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    for begin in tl.range(start, whole, TILE, num_stages=STAGES):
        acc = _dot(w_places + begin, x_places + begin, acc, None, used, WIDE)
    if not EVEN:
        inside = (whole + column < stop)[None, :]
        acc = _dot(w_places + whole, x_places + whole, acc, inside, used & inside, WIDE)
    places = token[None, :] * N + first[:, None]
    mask = (first < N)[:, None] & (token < tokens)[None, :]
    columns = first[:, None] + tl.zeros((1, TOKENS), tl.int32)
    _leave(acc, bias, add, out, partial, counters, columns, places, mask, tokens * N, splits,
           ACTIVATION, SPLIT, COUNTED)  # fmt: skip


@triton.jit(do_not_specialize=["numbers", "splits"])
def combine_kernel(partial, bias, add, out, N, numbers, splits, BLOCK: tl.constexpr,
                   ACTIVATION: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK outputs: the second launch of a split product whose programs are not counted."""
    _wake(PDL)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < numbers
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = _add_shares(partial, places, mask, numbers, splits)
    _finish(total, bias, add, out, places % N, places, mask, ACTIVATION)
