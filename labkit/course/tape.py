"""A CUDA graph in slow motion: what a capture keeps, and what it does not, shown on any device.

    tape = Tape(lambda: (x * 2).sum())   # runs once, and notes each operation with its arguments
    x.fill_(3); tape.replay()            # the same operations, on the same memory

A CUDA graph keeps a list of kernels with the addresses they read and write, and every number that Python handed to
them. A tape keeps torch operations instead of kernels, so that it needs no GPU and can be read. What a capture
refuses it refuses too: an operation whose result the host waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.errors import LabkitError

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "is_nonzero")
"""Operations that hand a device's result to the host."""


INDEXED = ("index", "index_put", "index_put_")
"""Those of which a boolean index does: its length is not known beforehand."""


class Tape:
    """What one run of `work` did.

    Attributes:
        result: what `work` returned; a replay writes into the same tensors.
        names: the operations noted, in order.

    Raises:
        LabkitError: the work makes the host wait for a result, as if-statements, `.item()` and boolean indices do.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._notes: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        with torch.inference_mode(False), torch.no_grad(), _Recorder(self._notes):
            self.result = work()

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that write something, without those that only look at memory in another shape."""
        return tuple(str(op.overloadpacket).removeprefix("aten.") for op, *_ in self._notes)

    def replay(self) -> Any:
        """Do it again: no line of `work` runs, only its operations, on the memory that they were given then."""
        with torch.no_grad():
            for op, args, kwargs, outputs in self._notes:
                for old, new in zip(outputs, _tensors(op(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
        return self.result


class _Recorder(TorchDispatchMode):
    def __init__(self, notes: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]]) -> None:
        super().__init__()
        self._notes = notes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func.overloadpacket).removeprefix("aten.")
        if name in WAITS or (name in INDEXED and any(one.dtype == torch.bool for one in _tensors(args[1]))):
            raise LabkitError(
                f"The host would wait for a result here ({name}); no graph can hold that.",
                "Keep the number on the device, or compute it before the capture.",
            )
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._notes.append((func, args, kwargs or {}, _tensors(out)))
        return out


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
