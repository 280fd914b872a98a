"""How weights in few bits are stored: the kind of number, and what shares a scale. packed.py has the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.errors import LabkitError

PAIRED = 128
"""Columns of a block of 4-bit numbers where a scale serves a whole row or matrix."""

FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0
BITS = {"int8": 8, "int4": 4, "fp8": 8}


@dataclass(frozen=True)
class Format:
    """How weights are stored.

    Args:
        kind: "int8", "int4" or "fp8" (e4m3).
        group: columns that share a scale, a power of 2 from 16 on; None: the whole row, or with `tensor` everything.
        symmetric: zero is in the middle of the grid and no zero points are kept; always so for fp8.
        tensor: one scale for the whole matrix.

    Raises:
        LabkitError: what no kernel could read.
    """

    kind: str
    group: int | None = None
    symmetric: bool = True
    tensor: bool = False

    def __post_init__(self) -> None:
        if self.kind not in BITS:
            raise LabkitError(f"There is no format {self.kind!r}.", f"Choose one of {', '.join(BITS)}.")
        if self.group is not None and (self.group < 16 or self.group & (self.group - 1)):
            raise LabkitError(
                f"Groups of {self.group} columns cannot be stored.",
                "Give a power of 2 from 16 on, or None for rows.",
            )
        if self.tensor and self.group is not None:
            raise LabkitError(
                "One scale for the whole tensor leaves nothing to group.", "Give group or tensor."
            )
        if self.kind == "fp8" and not self.symmetric:
            raise LabkitError("fp8 has no zero points: it is symmetric.", "Leave symmetric=True.")

    @property
    def bits(self) -> int:
        """Of one weight, without its share of the scales."""
        return BITS[self.kind]

    @property
    def block(self) -> int:
        """Columns that are packed together; rows are padded to whole blocks of them in int4."""
        return self.group or PAIRED

    @property
    def limits(self) -> tuple[int, int]:
        """(low, high) of the stored integers as they are counted in `Packed.integers`."""
        if self.kind == "int4":
            return (1, 15) if self.symmetric else (0, 15)
        return (-127, 127) if self.symmetric else (-128, 127)

    @property
    def middle(self) -> int:
        """The zero point of a symmetric format."""
        return 8 if self.kind == "int4" else 0

    def groups(self, columns: int) -> int:
        """Scales of one row."""
        return -(-columns // self.group) if self.group else 1

    def __str__(self) -> str:
        grain = "tensor" if self.tensor else f"group {self.group}" if self.group else "row"
        return f"{self.kind} {grain}{'' if self.symmetric else ' affine'}"
