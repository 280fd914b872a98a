"""Packed weights: the arithmetic of their formats, and their kernels through the interpreter, in another process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabkitError
from labkit.kernels import packed_linear, w8a8
from labkit.kernels.formats import Format
from labkit.kernels.packed import cat, pack, quantise, unpack
from labkit.kernels.packed_tiling import COLUMNS, FEW, chunks, default_tiling, tile_of
from labkit.kernels.packed_tune import candidates

CASES = Path(__file__).with_name("packed_cases.py")
EVERY = [
    Format(kind, group, symmetric, tensor)
    for kind in ("int8", "int4", "fp8")
    for group in (None, 16, 32, 128)
    for symmetric in (True, False)
    for tensor in (False, True)
    if not (tensor and group) and not (kind == "fp8" and not symmetric)
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernels_through_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("made", EVERY, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_number_is_at_most_half_a_step_off(made, dtype):
    generator = torch.Generator().manual_seed(3)
    weight = (5 * torch.randn(6, 150, generator=generator, dtype=torch.float64)).to(dtype)
    weight[0] = 0
    weight[1, :140] = 0.5  # equal values
    weight[2, 7] = 300  # an outlier
    packed = quantise(weight, made)
    exact = packed.dequantise(torch.float64)
    assert packed.shape == (6, 150) and exact.shape == (6, 150) and bool(exact.isfinite().all())
    off = (exact - weight.double()).abs()
    wide = packed._wide(packed.scales).double().expand_as(off)
    if made.kind == "fp8":  # three bits behind the leading one, and a smallest step
        room = torch.maximum(weight.double().abs() / 16, wide * 2.0**-9 / 2) * 1.01
    else:
        # a scale rounded to few digits leaves the ends of the grid a little outside
        ends = weight.double().abs() * 2 * torch.finfo(dtype).eps
        room = wide * (0.5 if made.symmetric else 1.0) * 1.01 + ends
    assert bool((off <= room).all()), float((off - room).max())
    assert bool((exact[0] == 0).all())
    assert packed.dequantise().dtype == dtype
    halves = [packed.rows(0, 2), packed.rows(2, 6)]
    if not made.tensor:
        assert torch.equal(cat(halves).dequantise(torch.float64), exact)


@given(st.integers(1, 300), st.sampled_from([16, 32, 64, 128]))
def test_packing_is_undone(columns, block):
    numbers = torch.randint(0, 16, (3, columns), dtype=torch.uint8)
    assert torch.equal(unpack(pack(numbers, block), block, columns), numbers)


def test_where_two_numbers_lie():
    numbers = torch.arange(32, dtype=torch.uint8)[None] % 16
    assert pack(numbers, 32)[0].tolist() == [i | (i << 4) for i in range(16)]


def test_a_clip_saturates_what_is_beyond_it():
    weight = torch.tensor([[1.0, -0.5, 0.25, 8.0]])
    packed = quantise(weight, Format("int8"), clip=torch.tensor([[0.5]]))
    assert packed.dequantise()[0, 3] == pytest.approx(4.0) and packed.dequantise()[0, 0] == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_weights_are_refused(bad):
    weight = torch.ones(3, 20)
    weight[1, 2] = bad
    with pytest.raises(LabkitError, match="NaN or infinite"):
        quantise(weight, Format("int8"))


def test_what_cannot_be_is_refused():
    for arguments, said in (
        (("int5",), "no format 'int5'"),
        (("int4", 24), "Groups of 24"),
        (("fp8", None, False), "no zero points"),
        (("int8", 32, True, True), "nothing to group"),
    ):
        with pytest.raises(LabkitError, match=said):
            Format(*arguments)
    weight = torch.ones(4, 32)
    with pytest.raises(LabkitError, match="cannot be quantised"):
        quantise(weight[0], Format("int8"))
    with pytest.raises(LabkitError, match="does not fit"):
        quantise(weight, Format("int8"), clip=torch.ones(3, 1))
    packed = quantise(weight, Format("int8"))
    with pytest.raises(LabkitError, match="cannot become one: they differ"):
        cat([packed, quantise(weight, Format("int8", 16))])
    with pytest.raises(LabkitError, match="one scale serves"):
        cat([quantise(weight, Format("int8", tensor=True))] * 2)
    with pytest.raises(LabkitError, match="Rows 3:9 of 4"):
        packed.rows(3, 9)
    x = torch.ones(2, 32)
    with pytest.raises(LabkitError, match="do not multiply"):
        packed_linear.packed_linear(x[:, :5], packed)
    with pytest.raises(LabkitError, match="residual"):
        packed_linear.packed_linear(x, packed, add=torch.ones(1, 4))
    with pytest.raises(LabkitError, match="each group of 16 columns"):
        w8a8.w8a8_linear(x, quantise(weight, Format("int8", 16)))


def test_a_token_s_answer_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(0)
    weight = quantise(torch.randn(9, 50, generator=generator), Format("int8"))
    x = torch.randn(4, 50, generator=generator)
    x[3] *= 1000
    whole = w8a8.w8a8_linear(x, weight)
    for row in range(4):
        assert torch.equal(w8a8.w8a8_linear(x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize(("tokens", "width"), [(3, 2500), (17, 1), (40, 1024), (33, 2500)])
def test_int8_sums_are_exact_however_large(tokens, width):
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randint(100, 128, (n, width), dtype=torch.int8, generator=generator) for n in (tokens, 5)
    )
    x[0], weight[0] = -128, -128
    assert torch.equal(w8a8.product(x, weight), (x.long() @ weight.long().T).int())


@given(
    st.sampled_from(EVERY),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from([1, 4, 16, 64, 256]),
    st.booleans(),
)
def test_default_tilings_are_ones_that_kernels_take(made, n, k, tokens, exact):
    tiling = default_tiling(n, k, tokens, made, 132, exact=exact)
    width = -(-k // made.block) * made.block // 2 if made.kind == "int4" else k
    assert (
        tiling.rows & (tiling.rows - 1) == 0 and tiling.tile & (tiling.tile - 1) == 0 and tiling.splits >= 1
    )
    assert tiling.splits == tiling.filled(width)
    if tiling.planes:
        assert not exact and tokens <= FEW
        for each in candidates(n, k, tokens, made, 132):
            assert not each.planes or chunks(made, tokens, each.tile) <= COLUMNS and each.tile >= 32
    else:
        assert tiling.tile == tile_of(made, width) >= 16 and tiling.rows >= 16
        assert exact or candidates(n, k, tokens, made, 132)[0] == tiling
