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

FEW = 16
"""Tokens up to which x may go to the tensor cores as whole numbers."""

COLUMNS = 32
"""Chunks of x that such a product takes at a time: more of them leave no room for weights."""

NARROW = 8
"""Chunks that four warps may take. For more Triton 3.6 chooses Hopper's asynchronous products, which were seen to read
the chunks before they were written; two warps get the synchronous ones."""


@dataclass(frozen=True)
class PackedTiling:
    """How a program works; results differ by rounding only.

    Args:
        rows: of the weight for each program, a power of 2.
        tile: bytes of a row at a time, a power of 2.
        warps: of a program.
        stages: tiles in flight on their way to the tensor cores.
        splits: shares of K.
        planes: x goes to the tensor cores as whole numbers (fp8: as scaled half precision), see packed_linear.py.
    """

    rows: int
    tile: int
    warps: int
    stages: int = 1
    splits: int = 1
    planes: bool = False

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
        return default_tiling(n, k, tokens, made, processors(device), exact=dtype == torch.float32)
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


def default_tiling(
    n: int, k: int, tokens: int, made: Format, processors: int, *, exact: bool = False
) -> PackedTiling:
    """A tiling from sizes alone. Without planes a tile never reaches beyond the columns of one scale.

    Args:
        tokens: padded ones.
        exact: x is float32, which planes would round.
    """
    width = -(-k // made.block) * made.block // 2 if made.kind == "int4" else k
    if not exact and chunks(made, tokens, 32) <= COLUMNS and tokens <= FEW:
        tile, most = 32, min(128 if made.kind == "int4" else 256, power(width))
        while 2 * tile <= most and chunks(made, tokens, 2 * tile) <= COLUMNS:
            tile *= 2
        narrow = chunks(made, tokens, tile) <= NARROW
        tiling, least = PackedTiling(128 if narrow else 64, tile, 4 if narrow else 2, 3, planes=True), 3
    else:
        tiling, least = PackedTiling(64, tile_of(made, width), 4, 3), 2
    steps = -(-width // tiling.tile)
    traffic = 8 * tokens / width
    splits = choose_splits(-(-n // tiling.rows), steps, processors, least=least, traffic=traffic)
    return replace(tiling, splits=replace(tiling, splits=splits).filled(width))


def padded(tokens: int) -> int:
    """The tokens that a program computes: 1, 4, or a power of 2 from 16 on."""
    return 1 if tokens == 1 else 4 if tokens <= 4 else max(16, power(tokens))


def chunks(made: Format, tokens: int, tile: int) -> int:
    """Columns of a product with planes: one for each group, half and token of a tile of `tile` bytes."""
    halves = 2 if made.kind == "int4" else 1
    span = tile if made.group is None else min(tile, made.group // halves)
    return tokens * halves * (tile // span)


def tile_of(made: Format, width: int) -> int:
    """Bytes of a row that tensor cores take at a time: 64, or fewer where a scale serves fewer."""
    return max(16, min(64, power(served(made, width))))


def served(made: Format, width: int) -> int:
    """Bytes of a row that share a scale."""
    if made.group is None:
        return width
    return made.block // 2 if made.kind == "int4" else made.group
