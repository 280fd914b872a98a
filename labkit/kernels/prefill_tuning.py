"""How the prefill kernel (prefill.py) cuts its work: sizes of tiles, warps, stages, and what they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.kernels.device import power

HOPPER_SHARED = 227 * 1024
"""Shared memory that a program may have on an H100 or H200 [B]."""


@dataclass(frozen=True)
class Tuning:
    """How a program works; results differ by rounding only.

    Args:
        tile_q: rows of the tile of queries (queries · heads of a group), a power of 2 and at least 16.
        tile_k: keys at a time, a power of 2 and at least 16.
        warps: of a program.
        stages: tiles of keys in flight.
    """

    tile_q: int
    tile_k: int
    warps: int
    stages: int

    def shared_bytes(self, head_dim: int, element: int, stored: int) -> int:
        """Shared memory of a program, at most: its queries, keys and values in flight, and converted ones [B]."""
        keys = 2 * self.tile_k * (self.stages * stored + (element if stored != element else 0))
        return (self.tile_q * element + keys) * max(16, power(head_dim))


def default_tuning(
    head_dim: int, group: int, element: int, stored: int, typical: int, memory: int = HOPPER_SHARED
) -> Tuning:
    """Tiles of 64 rows, what Hopper's tensor cores take at once, so that a processor holds several programs and one
    computes while another waits; larger tiles, which read keys less often, were slower.

    Fewer rows only if all rows of the step may be single tokens: one long chunk would suffer. Measured on an H200
    for head dimension 128 in bf16; elsewhere chosen by what the compiler reports (registers, spills).

    Args:
        group: query heads for each KV head.
        element, stored: bytes of a number of the query, and of a stored one.
        typical: tokens for each row, rounded up.
        memory: shared memory that a program may have [B].
    """
    least = max(16, power(group))
    large = head_dim > 128
    if element == 4:  # without tensor cores: what fits into registers
        tuning = Tuning(max(least, 32), 16, 8, 2)
    elif typical == 1:
        tuning = Tuning(least, 32 if large else 64, 4, 3)
    elif not large and (stored == 2 or typical * group <= 512):
        tuning = Tuning(max(least, 64), 64, 4, 3)
    elif stored == 1:
        tuning = Tuning(max(least, 128), 32 if large else 64, 8, 3)
    else:
        tuning = Tuning(max(least, 128), 64, 8, 2)
    smaller = [
        {"stages": 2},
        {"tile_k": 64},
        {"tile_k": 32},
        {"tile_q": max(least, 64)},
        {"tile_k": 16},
        {"stages": 1},
    ]
    for change in smaller:
        if tuning.shared_bytes(head_dim, element, stored) > memory:
            tuning = replace(tuning, **{name: min(n, getattr(tuning, name)) for name, n in change.items()})
    return tuning


def candidates(head_dim: int, group: int, stored: int = 2, memory: int = HOPPER_SHARED) -> list[Tuning]:
    """Tunings in half precision worth measuring on Hopper.

    Over 16-bit pages without a window each compiles there without spilled registers.
    """
    if head_dim > 128:
        found = [(128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 3)]
    else:
        found = [(128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 4),
                 (128, 32, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2)]  # fmt: skip
    if head_dim <= 64:
        found.append((128, 64, 4, 3))
    tunings = [Tuning(*values) for values in found if values[0] >= group]
    return [tuning for tuning in tunings if tuning.shared_bytes(head_dim, 2, stored) <= memory]
