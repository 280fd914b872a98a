"""Judging tensors that an answer returned, and drawing those that go in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import expect

if TYPE_CHECKING:
    from torch import Tensor


def normal(rng: random.Random, *shape: int, scale: float = 1.0) -> Tensor:
    """Random numbers in float64, so that a right answer is right to many digits."""
    import torch  # the command line does not wait for it

    drawn = torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(rng.getrandbits(31))
    )
    return scale * drawn


def as_tensor(got: Any) -> Tensor | None:
    """`got` as a tensor of numbers: a tensor, an array or nested lists; None for anything else."""
    import torch

    try:
        found = torch.as_tensor(got)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if found.dtype == torch.bool or found.is_complex() else found


def near(got: Tensor, want: Tensor, tolerance: float = 1e-6) -> bool:
    """Whether two tensors have one shape and agree; NaN agrees with nothing. float32 arithmetic is good enough."""
    if got.shape != want.shape:
        return False
    apart = (got.double() - want.double()).abs()
    return bool((apart <= tolerance * (1 + want.double().abs())).all())


def judge(got: Any, want: Tensor, key: str, typical: Mapping[str, Tensor], **given: Any) -> None:
    """Accept a tensor equal to `want`; else raise, naming the typical mistake that it equals, if any.

    Args:
        got: what came back; another shape, or a value that is not finite, raises the failure "form".
        key: the failure where no typical mistake explains it.
        typical: failure key → what that mistake would give here; skipped where it would be right.
        given: the input, for the failure's text.
    """
    tensor = as_tensor(got)
    shape = list(want.shape)
    expect(tensor is not None and list(tensor.shape) == shape, "form", got=got, shape=shape, **given)
    assert tensor is not None
    expect(bool(tensor.isfinite().all()), "form", got=got, shape=shape, **given)
    if near(tensor, want, 1e-5):
        return
    for mistake, value in typical.items():
        expect(near(value, want, 1e-4) or not near(tensor, value, 1e-5), mistake, got=got, want=want, **given)
    expect(False, key, got=got, want=want, **given)
