"""Kernels through Triton's interpreter: bytes, tiles, stray accesses, and a language left as it was."""

import ast
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.course import interpreted, no_triton
from labkit.course.grading import interpret
from labkit.course.grading.cells import imports
from labkit.errors import LabkitError

triton = pytest.importorskip("triton")
tl = triton.language


@triton.jit
def twice(x):
    return 2 * x


@triton.jit
def double(x, y, n, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(y + place, twice(tl.load(x + place, mask=place < n)), mask=place < n)


@triton.jit
def total(x, y, n, TILE: tl.constexpr):
    place = tl.arange(0, TILE)
    value = tl.load(x + tl.program_id(0) * n + place, mask=place < n, other=0.0)
    scale = tl.load(y + place * 0)  # one number, named TILE times
    tl.atomic_add(y + 1 + tl.program_id(0), tl.sum(value * scale, 0))


@triton.jit
def beyond(x, n, TILE: tl.constexpr):
    place = tl.arange(0, TILE)
    tl.store(x + place, place.to(tl.float32), mask=place <= n)


def test_bytes_and_tiles_without_masked_lanes():
    n = random.randint(33, 47)
    for dtype in (torch.float32, torch.float16):
        x, y = torch.arange(n).to(dtype), torch.full((n,), torch.nan, dtype=dtype)
        moved = interpreted.traffic(double, (3,), (x, y, n), {"TILE": 16, "num_warps": 1})
        assert moved.read == {"x": n * dtype.itemsize, "y": 0}
        assert moved.written == {"x": 0, "y": n * dtype.itemsize} and moved.total == 2 * n * dtype.itemsize
        assert [tile.program for tile in moved.tiles["y"]] == [(0,), (1,), (2,)]
        assert [tile.places.tolist() for tile in moved.tiles["x"]][2] == list(range(32, n))
        assert moved.programs("y", "written").tolist() == [place // 16 for place in range(n)]
        assert (moved.programs("y", "read") == -1).all()
        assert y.isnan().all(), "traffic works on copies"
        interpreted.launch(double, (3,), x, y, n, TILE=16)
        assert torch.equal(y, 2 * x)


def test_one_number_named_often_is_read_once_and_atomics_count_both_ways():
    x, y = torch.randn(2, 5), torch.tensor([3.0, 0.0, 0.0])
    moved = interpreted.traffic(total, (2,), (x, y, 5), {"TILE": 8})
    assert moved.read == {"x": 40, "y": 16} and moved.written == {"x": 0, "y": 8}
    interpreted.launch(total, (2,), x, y, 5, TILE=8)
    assert torch.allclose(y[1:], 3 * x.sum(1))


def test_views_are_counted_from_their_own_first_element():
    whole = torch.randn(4, 20)
    x, y = whole[2], torch.empty(20)
    moved = interpreted.traffic(double, (2,), (x, y, 20), {"TILE": 16})
    assert moved.tiles["x"][0].places.tolist() == list(range(16)) and moved.read["x"] == 80


def test_a_store_outside_every_tensor_raises_and_happens_not():
    whole = torch.zeros(12)
    x = whole[:8]  # the memory behind it is there, and must stay as it is
    with pytest.raises(interpret.OutOfBounds, match=r"program \(0,\) writes element 8 of x, which has 8"):
        interpreted.launch(beyond, (1,), x, 8, TILE=16)
    assert not whole[8:].any()


def test_a_kernels_own_error_comes_as_it_is():
    @triton.jit
    def broken(x, TILE: tl.constexpr):
        raise NotImplementedError

    @triton.jit
    def calls(x, TILE: tl.constexpr):
        broken(x, TILE)

    for kernel in (broken, calls):
        with pytest.raises(NotImplementedError):
            interpreted.launch(kernel, (1,), torch.zeros(4), TILE=4)


def test_the_language_is_afterwards_what_it_was():
    parts = [tl, tl.core, tl.math, tl.tensor, triton.runtime.jit.JITFunction]
    before = [dict(vars(part)) for part in parts]
    names = set(double.fn.__globals__)
    interpreted.traffic(double, (1,), (torch.zeros(8), torch.zeros(8), 8), {"TILE": 8})
    with pytest.raises(interpret.OutOfBounds):
        interpreted.launch(beyond, (1,), torch.zeros(8), 8, TILE=16)
    for part, was in zip(parts, before, strict=True):
        for name, value in was.items():
            if not name.startswith("__") or name == "__call__":
                assert vars(part)[name] is value, f"{part}.{name}"
    assert set(double.fn.__globals__) == names
    with pytest.raises(RuntimeError):
        twice(1)


def test_it_runs_under_triton_interpret_too():
    case = f"{__file__}::test_bytes_and_tiles_without_masked_lanes"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", case]
    command.append(f"{__file__}::test_a_kernels_own_error_comes_as_it_is")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and "2 passed" in ran.stdout, ran.stdout[-3000:]


def test_a_launcher_takes_the_kernels_own_arguments():
    launch = interpret.launcher(double)
    got = launch(torch.ones(8), torch.zeros(8), 8, TILE=8, grid=(1,))
    assert got["tensors"]["y"].eq(2).all() and got["written"] == {"x": 0, "y": 32}
    assert Path(launch.home) == Path(__file__) and interpret.launcher(sum) is sum
    with pytest.raises(TypeError):
        launch(torch.ones(8), grid=(1,))


def test_without_triton_the_tool_says_so(monkeypatch):
    monkeypatch.setattr(interpreted, "available", lambda: False)
    for attempt in (
        lambda: interpreted.launch(double, (1,), torch.zeros(8), torch.zeros(8), 8, TILE=8),
        lambda: interpreted.traffic(double, (1,), (torch.zeros(8), torch.zeros(8), 8), {"TILE": 8}),
        lambda: no_triton.triton.jit(lambda x: x)[(1,)](torch.zeros(8)),
    ):
        with pytest.raises(LabkitError, match="needs Triton"):
            attempt()


def test_imports_that_a_set_up_cell_tries_are_the_graders_too():
    source = (
        "import torch\n"
        "try:\n    import triton\n    import triton.language as tl\n"
        "except ImportError:\n    from labkit.course.no_triton import tl, triton\n"
        "from labkit.course import check\n"
    )
    assert [ast.unparse(node) for node in imports(source)] == [
        "import torch",
        "import triton",
        "import triton.language as tl",
    ]
