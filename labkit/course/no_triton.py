"""What a notebook puts in Triton's place where there is none (macOS, Windows), so that its cells still define kernels.

    try:
        import triton
        import triton.language as tl
    except ImportError:
        from labkit.course.no_triton import tl, triton

Nothing here runs a kernel: exercises that need Triton say so and count as open.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from labkit.errors import LabkitError


def missing() -> LabkitError:
    """The error of whatever would have to run a kernel."""
    return LabkitError(
        "This needs Triton, which is not installed here.",
        "It exists for Linux (on Windows: inside WSL). Everything else in the notebook works without it.",
    )


class Kernel:
    """A kernel that is only written down."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__, self.__doc__ = fn.__name__, fn.__doc__

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise missing()

    __call__ = run

    def __getitem__(self, grid: Any) -> Callable[..., NoReturn]:
        return self.run


class _Language:
    """Has every attribute, so that `tl.constexpr` can stand in a kernel's first line."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Triton(_Language):
    jit = Kernel

    @staticmethod
    def cdiv(x: int, y: int) -> int:
        """x ÷ y, rounded up."""
        return -(-x // y)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """The smallest power of 2 that is at least n."""
        return 1 << max(0, n - 1).bit_length()


triton, tl = _Triton(), _Language()
