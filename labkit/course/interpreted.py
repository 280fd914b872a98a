"""Triton kernels in a notebook: launched on whatever device the tensors are, and watched on the CPU.

launch(kernel, grid, *args, **meta)    CPU tensors: through Triton's interpreter; GPU tensors: compiled
traffic(kernel, grid, args, meta)      through the interpreter, on CPU copies: bytes moved, tiles touched

The interpreter runs one program after the other in Python, so its time says nothing; what it reads and writes is
what the compiled kernel asks of memory (caches not considered). See grading/interpret.py for how it works.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from labkit.course.grading import interpret
from labkit.course.no_triton import missing

if TYPE_CHECKING:
    import numpy
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tile:
    """What one load or store of one program touched.

    Attributes:
        program: its place in the grid.
        kind: "read" or "written".
        places: int64, the elements, as offsets from the tensor's first one; those that were masked are left out.
    """

    program: tuple[int, ...]
    kind: str
    places: numpy.ndarray


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a launch moved, by tensor argument.

    Attributes:
        read, written: bytes, each program's counted. An element named twice in one load counts once, for the GPU
            fetches it once; in two loads, twice.
        tiles: in the order in which programs touched them.
        shapes: of the tensors.
    """

    read: dict[str, int]
    written: dict[str, int]
    tiles: dict[str, list[Tile]]
    shapes: dict[str, tuple[int, ...]]

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return sum(self.read.values()) + sum(self.written.values())

    def programs(self, name: str, kind: str | None = None) -> numpy.ndarray:
        """For each element of a contiguous tensor the number of the program that touched it last, −1 for none.

        Programs are numbered in the order in which they run. The picture of it: plt.imshow(traffic.programs("out")).

        Args:
            name: the tensor argument.
            kind: "read" or "written"; either if not given.
        """
        import numpy

        order = {each: number for number, each in enumerate(sorted({t.program for t in self._all()}))}
        found = numpy.full(self.shapes[name], -1)
        for tile in self.tiles[name]:
            if kind in (None, tile.kind):
                found.reshape(-1)[tile.places] = order[tile.program]
        return found

    def _all(self) -> list[Tile]:
        return [tile for tiles in self.tiles.values() for tile in tiles]


def available() -> bool:
    """Whether Triton is installed: then its interpreter runs, with or without a GPU."""
    return importlib.util.find_spec("triton") is not None


def launch(kernel: Any, grid: Sequence[int], *args: Any, **meta: Any) -> None:
    """Launch a kernel on the device of its tensors.

    Args:
        kernel: what @triton.jit made.
        grid: programs along one, two or three axes.
        args, meta: the kernel's arguments, as for kernel[grid](*args, **meta).

    Raises:
        LabkitError: Triton is not installed.
        OutOfBounds: in the interpreter, an access outside every tensor.
    """
    if not available():
        raise missing()
    if any(_on_gpu(value) for value in (*args, *meta.values())):
        kernel[tuple(grid)](*args, **meta)
    else:
        interpret.run(kernel, grid, args, meta)


def traffic(kernel: Any, grid: Sequence[int], args: Sequence[Any], meta: Mapping[str, Any]) -> Traffic:
    """What a kernel reads and writes, program by program. The tensors themselves stay as they are.

    Args:
        kernel: what @triton.jit made; interpreted here even where labkit's own kernels are compiled.
        grid: programs along one, two or three axes.
        args, meta: the kernel's arguments.

    Raises:
        LabkitError: Triton is not installed.
        OutOfBounds: an access outside every tensor.
    """
    if not available():
        raise missing()
    named = {name: _copy(value) for name, value in meta.items()}
    record = interpret.run(kernel, grid, [_copy(value) for value in args], named)
    shapes = {name: tuple(each.shape) for name, each in record.arguments.items() if hasattr(each, "data_ptr")}
    tiles: dict[str, list[Tile]] = {name: [] for name in shapes}
    for program, kind, name, places in record.accesses:
        tiles[name].append(Tile(program, kind, places))
    return Traffic(record.bytes("read"), record.bytes("written"), tiles, shapes)


def _on_gpu(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _copy(value: Any) -> Any:
    """A tensor of its own on the CPU, with the same strides."""
    if not hasattr(value, "data_ptr"):
        return value
    tensor = cast("Tensor", value).detach()
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
