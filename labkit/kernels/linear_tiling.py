"""How the kernels of labkit/kernels/linear.py cut their work: the tiles, the split of K, and what to try in tuning.

Two losses pull against each other. Few large programs leave processors idle in the last wave (150 programs on
132 processors take as long as 264) or have too few loads on their way; many small ones read x again and again,
and every share of K adds a write and a read of float32 sums.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from labkit.errors import LabkitError
from labkit.kernels import tuning
from labkit.kernels.device import power, processors

MOST_SPLITS = 8
LOAD = 512  # bytes that a warp loads at a time: 16 for each thread
SPLIT_COST = 0.05  # of the time: counting who comes last, adding the shares up (a guess)


@dataclass(frozen=True)
class Tiling:
    """How a program works; results differ by rounding only.

    Args:
        rows: of the weight for each program; a power of 2, at least 16 on tensor cores.
        tile: columns at a time; a power of 2, at least 16 on tensor cores.
        warps: of a program.
        stages: tiles in flight through shared memory; 1 loads straight into registers.
        splits: shares of K.

    Raises:
        LabkitError: a number that no kernel takes.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    splits: int = 1

    def __post_init__(self) -> None:
        powers = (self.rows, self.tile, self.warps)
        if any(n < 1 or n & (n - 1) for n in powers) or self.warps > 32 or min(self.stages, self.splits) < 1:
            raise LabkitError(
                f"{self} is no way to cut a linear layer.",
                "Give powers of 2 for rows, tile and warps (up to 32), and at least one stage and split.",
            )

    def filled(self, k: int, splits: int | None = None) -> int:
        """Shares that really get tiles, of those wanted (its own number if None): 5 tiles in 4 shares are 3."""
        steps = -(-k // self.tile)
        return -(-steps // -(-steps // min(splits or self.splits, steps)))


def padded(tokens: int) -> int:
    """The tokens that a program computes: 1 alone, or a power of 2 from 16 on."""
    return 1 if tokens == 1 else max(16, power(tokens))


def operation(tokens: int) -> str:
    """The name of the operation in the tuning file; `tokens` are padded ones."""
    return f"linear{tokens}"


@cache
def tiling_for(device: torch.device, dtype: torch.dtype, n: int, k: int, tokens: int) -> Tiling:
    """The tuned tiling of a weight [n, k] on this device, or the default one; `tokens` are padded ones.

    Raises:
        LabkitError: the tuning file holds an entry that is none.
    """
    entry = tuning.look_up(device, operation(tokens), dtype, (n, k))
    if entry is None:
        return default_tiling(n, k, tokens, dtype.itemsize, processors(device))
    try:
        return Tiling(**{name: value for name, value in entry.items() if name != "seconds"})
    except TypeError as error:
        raise LabkitError(
            f"The tuned entry of {operation(tokens)} {n}x{k} is no tiling ({error}).",
            "Restore the tuning file from git, or tune again.",
        ) from None


def forget() -> None:
    """Look tilings up again: a tuning file has changed."""
    tiling_for.cache_clear()


def entry(tiling: Tiling, seconds: float) -> dict[str, Any]:
    """What the tuning file keeps."""
    return {**asdict(tiling), "seconds": seconds}


def default_tiling(n: int, k: int, tokens: int, element: int, processors: int) -> Tiling:
    """A tiling from sizes alone.

    One token: four rows of 2 KiB, which is one load of 16 B for each thread and row. More: 64 rows of 256 B, the
    least that Hopper's tensor cores take from shared memory. float32 products use no tensor cores: small tiles.

    Args:
        tokens: padded.
        element: bytes of a number.
    """
    if tokens == 1:
        tiling = Tiling(4 if n >= 8192 else 2, 2048 // element, 4, 1)
    elif element < 4:
        tiling = Tiling(64, 128, 4, 4)
    else:
        tiling = Tiling(32, 32, 4, 3)
    return _balanced(_shortened(tiling, k, tokens, element), n, k, tokens, element, processors)


def choose_splits(blocks: int, steps: int, processors: int, *, least: int, traffic: float) -> int:
    """Into how many shares K is cut: the number for which the estimated time is least.

    The time is the longest processor's work over the average (or worse, where loads in flight are too few),
    plus what the shares move.

    Args:
        blocks: programs without a split.
        steps: tiles along K; a share gets two or more.
        processors: streaming multiprocessors of the GPU.
        least: programs that keep one processor busy.
        traffic: bytes of partial sums moved for each share, as a part of the weight's bytes.
    """

    def time(splits: int) -> float:
        programs = blocks * splits
        longest = math.ceil(programs / processors) * processors / programs
        idle = least * processors / programs
        return max(longest, idle) * (1 + (SPLIT_COST + traffic * splits if splits > 1 else 0))

    return min(range(1, max(1, min(MOST_SPLITS, steps // 2)) + 1), key=time)


def candidates(n: int, k: int, tokens: int, element: int, processors: int) -> list[Tiling]:
    """What to time for a weight [n, k]: the default first, at most 32; arguments as for `default_tiling`."""
    found = [default_tiling(n, k, tokens, element, processors)]
    tries = _VECTOR if tokens == 1 else _TILES if element < 4 else _EXACT
    for numbers in tries:
        tiling = Tiling(*numbers)
        if tokens == 1 and element == 4:
            tiling = replace(tiling, tile=max(1, tiling.tile // 2))
        tiling = _shortened(tiling, k, tokens, element)
        best = _balanced(tiling, n, k, tokens, element, processors)
        # the estimate is rough: on tensor cores its neighbours are tried, for a vector not splitting
        others = (1,) if tokens == 1 else (max(1, best.splits // 2), min(MOST_SPLITS, 2 * best.splits))
        found += [best, *(replace(tiling, splits=tiling.filled(k, splits)) for splits in others)]
    return list(dict.fromkeys(found))[:32]


# rows, tile, warps, stages; for numbers of 2 bytes
# a vector's tile gives each thread at least one load of 16 B: of a narrower one x would have to be passed around
# between threads, and all would wait for each other in every step
_VECTOR = [
    (4, 1024, 4, 1), (2, 1024, 4, 1), (1, 1024, 4, 1), (8, 1024, 4, 1), (4, 512, 2, 1), (8, 512, 2, 1),
    (2, 512, 2, 1), (4, 256, 1, 1), (8, 256, 1, 1), (2, 256, 1, 1), (2, 2048, 8, 1), (4, 2048, 8, 1),
    (1, 2048, 4, 1), (2, 2048, 4, 1), (1, 4096, 4, 1), (4, 1024, 4, 3), (2, 1024, 4, 3), (8, 1024, 8, 3),
    (2, 512, 2, 3), (4, 512, 2, 3),
]  # fmt: skip
_TILES = [
    (64, 128, 4, 4), (32, 256, 4, 4), (128, 64, 4, 5), (64, 64, 4, 6), (16, 256, 2, 4), (64, 256, 4, 3),
    (128, 128, 8, 4), (32, 128, 2, 5),
]  # fmt: skip
_EXACT = [(32, 32, 4, 3), (16, 64, 4, 3), (32, 64, 4, 2), (64, 32, 4, 2), (64, 32, 8, 3)]


def _shortened(tiling: Tiling, k: int, tokens: int, element: int) -> Tiling:
    """No tile is longer than K needs, and a vector's has work for all warps."""
    tile = min(tiling.tile, max(1 if tokens == 1 else 16, power(k)))
    warps = min(tiling.warps, max(1, tile * element // LOAD)) if tokens == 1 else tiling.warps
    return replace(tiling, tile=tile, warps=warps)


def _balanced(tiling: Tiling, n: int, k: int, tokens: int, element: int, processors: int) -> Tiling:
    """The tiling with the estimated best number of shares."""
    blocks, steps = -(-n // tiling.rows), -(-k // tiling.tile)
    least = max(1, 16 // tiling.warps) if tokens == 1 else 2
    traffic = 8 * tokens / (k * element)  # a float32 written and read for each output
    splits = choose_splits(blocks, steps, processors, least=least, traffic=traffic)
    return replace(tiling, splits=tiling.filled(k, splits))
