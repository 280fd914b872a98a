"""The Triton kernel of drawing tokens; labkit/kernels/draws.py explains and launches it."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether this kernel was built for Triton's interpreter, which runs it on the CPU one program at a time."""


@triton.jit
def _mix(state):
    """SplitMix64's output function of uint64 numbers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _step(number):
    """A number of steps of SplitMix64's state."""
    return number.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15


@triton.jit
def draw_kernel(logits, table, slots, index, tokens, bad, vocab, row_stride, WORDS: tl.constexpr,
                LARGEST: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """One row's token: the largest logit, or the winner of the race. Two walks along the vocabulary, in float64."""
    row = tl.program_id(0).to(tl.int64)
    words = table + tl.load(slots + row) * WORDS
    temperature = tl.load(words).to(tl.float64, bitcast=True)
    key = _mix(_mix(_step(tl.load(words + WORDS - 1))) + _step(tl.load(index + row)))
    place = tl.arange(0, TILE)
    top = tl.full((TILE,), float("-inf"), tl.float64)
    wrong = tl.zeros((TILE,), tl.int32)
    for begin in tl.range(0, vocab, TILE):
        x = tl.load(
            logits + row * row_stride + begin + place, mask=begin + place < vocab, other=float("-inf")
        )
        wrong = wrong | (x != x).to(tl.int32)
        top = tl.maximum(top, x.to(tl.float64))
    highest = tl.max(top, 0)
    shift = tl.minimum(highest, LARGEST)
    best = tl.full((TILE,), float("-inf"), tl.float64)
    winner = tl.zeros((TILE,), tl.int32)
    for begin in tl.range(0, vocab, TILE):
        token = begin + place
        inside = token < vocab
        x = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float64)
        score = tl.minimum(x, LARGEST) - shift
        if temperature > 0:
            bits = _mix(key + _step((token + 1).to(tl.int64))) >> 12
            uniform = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52
            score = score / temperature - tl.log(-tl.log(uniform))
        better = inside & (score > best)
        best = tl.where(better, score, best)
        winner = tl.where(better, token, winner)
    first = tl.min(tl.where(best == tl.max(best, 0), winner, vocab - 1), 0)  # of equal ones the lowest
    tl.store(tokens + row, first.to(tl.int64))
    tl.store(bad + row, (tl.max(wrong, 0) != 0) | (highest == float("-inf")))
