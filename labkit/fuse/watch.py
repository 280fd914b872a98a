"""Whether a model is still the one it was: the same modules, the same weights in the same memory, the same hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import is_
from typing import Any

from torch import Tensor, nn

from labkit.fuse.pieces import hooks
from labkit.models.linear import QuantizedLinear


class Watch:
    """Remembers what modules hold, and that no forward is put on one of them. Cheap enough to ask before every step.

    Args:
        modules: those whose own weights and submodules must stay; what they contain is not looked into.
        closely: whether weights must also stay where they are, so that moving or converting them is noticed, and
            hooks must neither come nor go.
    """

    def __init__(self, modules: Iterable[nn.Module] = (), *, closely: bool = False) -> None:
        self._tables: list[Any] = []
        self._keys: list[str] = []
        self._values: list[Any] = []
        self._modules: list[nn.Module] = []
        self._forwards: list[Any] = []
        self._closely = closely
        self._weights: list[Tensor] = []
        self._places: list[int] = []
        self._hooks: list[Mapping[int, Any]] = []
        self._hooked: list[int] = []
        for module in modules:
            self.add(module)

    def add(self, module: nn.Module, *, forward: bool = True) -> None:
        """Watch one more module; `forward`: its own forward too, which somebody may put in the class's place."""
        if forward:
            self._modules.append(module)
            self._forwards.append(vars(module).get("forward"))
        packed: list[Any] = [module._buffers] if isinstance(module, QuantizedLinear) else []
        tables: list[Any] = [module._modules, module._parameters, *packed]
        for table in tables:
            self._tables += [table] * len(table)
            self._keys += table.keys()
            self._values += table.values()
        if self._closely:
            around = list(hooks(module))
            self._hooks += around
            self._hooked += map(len, around)
            stored = [each for table in tables[1:] for each in table.values()]
            new = [weight for weight in stored if weight is not None]
            self._weights += new
            self._places += [weight.data_ptr() for weight in new]

    @property
    def same(self) -> bool:
        """Nothing was replaced since."""
        return (
            all(map(is_, map(dict.get, self._tables, self._keys), self._values))
            and all(map(is_, map(dict.get, map(vars, self._modules), repeat("forward")), self._forwards))
            and list(map(Tensor.data_ptr, self._weights)) == self._places
            and list(map(len, self._hooks)) == self._hooked
        )
