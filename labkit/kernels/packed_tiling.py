"""How the kernels of packed_linear.py cut their work, as linear_tiling.py has it for plain weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from labkit.errors import LabkitError
from labkit.kernels import tuning
from labkit.kernels.device import power, processors
from labkit.kernels.formats import Format
from labkit.kernels.linear_tiling import choose_splits

LANE = 8
"""Bytes that a thread loads at a time."""


@dataclass(frozen=True)
class PackedTiling:
    """How a program works; results differ by rounding only.

    Args:
        rows: of the weight for each program, a power of 2.
        tile: bytes of a row at a time, a power of 2.
        warps: of a program.
        stages: tiles in flight on their way to the tensor cores.
        splits: shares of K.
        pair: a thread takes twice eight bytes, for one token; groups must serve as many.
    """

    rows: int
    tile: int
    warps: int
    stages: int = 1
    splits: int = 1
    pair: bool = False

    def filled(self, width: int) -> int:
        """Shares that really get tiles of a row of `width` bytes."""
        steps = -(-width // self.tile)
        return -(-steps // -(-steps // min(self.splits, steps)))


def operation(made: Format, tokens: int) -> str:
    """The name of the operation in the tuning file; `tokens` are padded ones."""
    grain = "tensor" if made.tensor else f"g{made.group}" if made.group else "row"
    return f"{made.kind}-{grain}{'' if made.symmetric else '-affine'} linear{tokens}"


@cache
def tiling_for(
    device: torch.device, dtype: torch.dtype, made: Format, n: int, k: int, tokens: int
) -> PackedTiling:
    """The tuned tiling of a packed weight [n, k] on this device, or the default one; `tokens` are padded ones.

    Raises:
        LabkitError: the tuning file holds an entry that is none.
    """
    entry = tuning.look_up(device, operation(made, tokens), dtype, (n, k))
    if entry is None:
        return default_tiling(n, k, tokens, made, processors(device))
    try:
        return PackedTiling(**{name: value for name, value in entry.items() if name != "seconds"})
    except TypeError as error:
        raise LabkitError(
            f"The tuned entry of {operation(made, tokens)} {n}x{k} is no tiling ({error}).",
            "Restore the tuning file from git, or tune again.",
        ) from None


def forget() -> None:
    """Look tilings up again: a tuning file has changed."""
    tiling_for.cache_clear()


def default_tiling(n: int, k: int, tokens: int, made: Format, processors: int) -> PackedTiling:
    """A tiling from sizes alone. On tensor cores a tile never reaches beyond the columns of one scale."""
    width = -(-k // made.block) * made.block // 2 if made.kind == "int4" else k
    if tokens == 1:  # one warp a program: measured on an H200
        pair = made.group is None or served(made, width) >= 16
        tiling, least = PackedTiling(4, min(512 if pair else 256, max(16, power(width))), 1, pair=pair), 16
    else:
        tiling, least = PackedTiling(64, tile_of(made, width), 4, 3), 2
    steps = -(-width // tiling.tile)
    traffic = 8 * tokens / width
    splits = choose_splits(-(-n // tiling.rows), steps, processors, least=least, traffic=traffic)
    return replace(tiling, splits=replace(tiling, splits=splits).filled(width))


def tile_of(made: Format, width: int) -> int:
    """Bytes of a row that tensor cores take at a time: 64, or fewer where a scale serves fewer."""
    return max(16, min(64, power(served(made, width))))


def served(made: Format, width: int) -> int:
    """Bytes of a row that share a scale."""
    if made.group is None:
        return width
    return made.block // 2 if made.kind == "int4" else made.group
