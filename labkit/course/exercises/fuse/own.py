"""labkit's own kernels under the names of the exercises, without an import of Triton until one is used."""

from __future__ import annotations

import importlib
from typing import Any


class OwnKernel:
    """A kernel of own_triton.py, launched as any other: kernel[grid](…).

    Args:
        name: of the exercise and of the kernel.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    @property
    def kernel(self) -> Any:
        """What @triton.jit made.

        Raises:
            ImportError: Triton is not installed.
        """
        return getattr(importlib.import_module("labkit.course.exercises.fuse.own_triton"), self.__name__)

    @property
    def fn(self) -> Any:
        """The plain function behind it."""
        return self.kernel.fn

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """As Triton's kernels have it."""
        return self.kernel.run(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel[grid]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)
