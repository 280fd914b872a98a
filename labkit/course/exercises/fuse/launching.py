"""Launching a learner's kernel in a check, through the interpreter, and judging what it did to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Wrong, expect
from labkit.course.exercises.cache.tensors import as_tensor

if TYPE_CHECKING:
    from torch import Tensor

HALF = ("fp16", "bf16")  # as Triton names the types that it refuses an exponential of


def launched(
    fn: Callable, grid: tuple[int, ...], args: tuple[Any, ...], given: dict[str, Any]
) -> dict[str, Any]:
    """What a launch left and moved; see grading/interpret.py.

    Raises:
        Wrong: "no_kernel", "outside" (it reached beyond its tensors) or "half" (half precision where it will not do).
    """
    try:
        got = fn(*args, grid=grid)
    except Wrong as wrong:
        if wrong.key == "signature" and "grid" in str(wrong.fields.get("error")):
            raise Wrong("no_kernel", given) from None
        raise
    except AnswerRaised as raised:
        fields = {"said": raised.message, "line": raised.lines[-1] if raised.lines else "", **given}
        expect(raised.kind != "OutOfBounds", "outside", **fields)
        exponential = raised.message.startswith("Expected dtype") and any(h in raised.message for h in HALF)
        expect(not exponential, "half", **fields)
        raise
    report = isinstance(got, Mapping) and set(got) == {"tensors", "read", "written"}
    expect(report and all(isinstance(part, Mapping) for part in got.values()), "no_kernel", **given)
    return dict(got)


def result(got: dict[str, Any], name: str, like: Tensor, given: dict[str, Any]) -> Tensor:
    """One tensor as the kernel left it; nothing of it may still be the NaN that was there before."""
    found = as_tensor(got["tensors"].get(name))
    expect(found is not None and found.shape == like.shape and found.dtype == like.dtype, "form", **given)
    assert found is not None
    nothing = not got["written"].get(name)
    expect(not nothing, "nothing_written", **given)
    return found.float()


def other_outputs(got: dict[str, Any], name: str, given: dict[str, Any]) -> None:
    """Only one tensor may be written to."""
    wrote = [other for other, count in got["written"].items() if count and other != name]
    expect(not wrote, "wrote_input", wrote=", ".join(wrote), **given)


def agree(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether two float tensors agree to `tolerance`, NaN and infinity never."""
    apart = (got.double() - want.double()).abs()
    return bool((apart <= tolerance * (1 + want.double().abs())).all())
