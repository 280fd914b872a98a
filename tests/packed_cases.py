"""Packed linear layers through Triton's interpreter, run by test_kernels_packed.py with TRITON_INTERPRET=1."""

import os

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_kernels_packed.py"

import pytest  # noqa: E402
import torch  # noqa: E402

from labkit.kernels import gated, packed_linear, rms_norm, w8a8  # noqa: E402
from labkit.kernels.formats import Format  # noqa: E402
from labkit.kernels.linear import arrival_counters  # noqa: E402
from labkit.kernels.packed import quantise  # noqa: E402
from labkit.kernels.packed_tiling import PackedTiling, tile_of  # noqa: E402
from labkit.kernels.rms_norm import Norm  # noqa: E402

FORMATS = [
    Format("int8"),
    Format("int8", tensor=True, symmetric=False),
    Format("int8", 32, symmetric=False),
    Format("int8", 16),
    Format("fp8"),
    Format("fp8", 64),
    Format("int4"),
    Format("int4", 128, symmetric=False),
    Format("int4", 32),
    Format("int4", 16, symmetric=False),
]


def case(made, tokens, n, k, dtype=torch.float32):
    """x with outliers, and a packed weight with a row and a group of zeros."""
    generator = torch.Generator().manual_seed(tokens + n + k)
    weight = torch.randn(n, k, generator=generator)
    weight[1], weight[2, :40] = 0, 0
    x = 3 * torch.randn(tokens, k, generator=generator)
    x[:, 5] *= 40
    return x.to(dtype), quantise(weight.to(dtype), made)


def close(out, x, weight, **epilogue):
    """Against the exact product with the weight as it is stored."""
    wide = {
        name: each.double() if isinstance(each, torch.Tensor) else each for name, each in epilogue.items()
    }
    expected = packed_linear.reference(x.double(), weight, **wide)
    slack = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[x.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack * float(expected.abs().mean()))


@pytest.mark.parametrize("made", FORMATS, ids=str)
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 37, 200), (1, 8, 9), (3, 37, 200), (70, 19, 72)])
def test_equal_to_the_reference(made, tokens, n, k):
    x, weight = case(made, tokens, n, k)
    out = torch.full((tokens, n), torch.nan)
    assert packed_linear.launch(x, weight, out=out) is out
    close(out, x, weight)


@pytest.mark.parametrize(
    "made", [Format("int8"), Format("int4", 64, symmetric=False), Format("fp8", 32)], ids=str
)
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("counted", [False, True])
def test_shares_and_the_epilogue(made, tokens, counted):
    x, weight = case(made, tokens, 41, 520)
    bias, add = torch.randn(41), torch.randn(tokens, 41)
    tiling = PackedTiling(16, tile_of(made, 520), 1, splits=3)
    counters = arrival_counters(41, "cpu") if counted else None
    out = packed_linear.launch(x, weight, bias, add=add, activation="gelu", tiling=tiling, counters=counters)
    close(out, x, weight, bias=bias, add=add, activation="gelu")
    assert counters is None or not counters.any()


@pytest.mark.parametrize("made", FORMATS, ids=str)
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 37, 200), (1, 8, 9), (3, 37, 520), (16, 19, 72)])
def test_x_as_whole_numbers(made, tokens, n, k):
    for dtype in (torch.float16, torch.bfloat16):
        x, weight = case(made, tokens, n, k, dtype)
        out = torch.full((tokens, n), torch.nan, dtype=dtype)
        close(packed_linear.launch(x, weight, out=out), x, weight)
        plain = PackedTiling(16, tile_of(made, k), 1)
        close(packed_linear.launch(x, weight, tiling=plain), x, weight)


@pytest.mark.parametrize(
    "made", [Format("int8"), Format("int4", 32, symmetric=False), Format("fp8")], ids=str
)
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("counted", [False, True])
def test_shares_of_whole_numbers(made, tokens, counted):
    x, weight = case(made, tokens, 41, 520, torch.bfloat16)
    bias, add = torch.randn(41).bfloat16(), torch.randn(tokens, 41).bfloat16()
    counters = arrival_counters(41, "cpu") if counted else None
    tiling = PackedTiling(32, 64, 1, splits=3, planes=True)
    out = packed_linear.launch(x, weight, bias, add=add, activation="gelu", tiling=tiling, counters=counters)
    close(out, x, weight, bias=bias, add=add, activation="gelu")
    assert counters is None or not counters.any()


@pytest.mark.parametrize(
    "made", [Format("int8"), Format("int8", 64), Format("int4", 64), Format("fp8")], ids=str
)
def test_whole_numbers_keep_outliers_zeros_and_nan_to_themselves(made):
    x, weight = case(made, 4, 24, 256, torch.bfloat16)
    x[0, 7], x[1], x[2, 9] = 3e4, 0, torch.nan
    out = packed_linear.launch(x, weight)
    close(out[[0, 1, 3]], x[[0, 1, 3]], weight)
    assert (out[1] == 0).all() and out[2].isnan().all()
    alone = packed_linear.launch(x[3:], weight)
    torch.testing.assert_close(alone, out[3:], rtol=1e-2, atol=1e-2 * float(out[3].abs().mean()))


@pytest.mark.parametrize(
    "made", [Format("int8"), Format("int4", 32, symmetric=False), Format("fp8", 64)], ids=str
)
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_norm_or_a_gate_on_the_way(made, tokens):
    x, weight = case(made, tokens, 24, 200, torch.float16)
    x[:, 5] /= 40
    add = torch.randn(tokens, 24).half()
    for tiling in (
        None,
        PackedTiling(16, tile_of(made, 200), 1),
        PackedTiling(32, 64, 1, splits=2, planes=True),
    ):
        norm = Norm(torch.randn(200).half(), 1e-5, offset=1.0, wide=True)
        normed = rms_norm.reference(x.double(), norm.weight.double(), 1e-5, offset=1.0, wide=True)[0]
        out = packed_linear.launch(x, weight, add=add, norm=norm, tiling=tiling)
        close_to(out, normed, weight, add)
        both = torch.randn(tokens, 400).half()
        for gate in ("silu", "gelu_tanh"):
            out = packed_linear.launch(both, weight, add=add, gate=gate, tiling=tiling)
            close_to(out, gated.reference(both.double(), gate), weight, add)


def close_to(out, x, weight, add):
    expected = packed_linear.reference(x, weight, add=add.double())
    torch.testing.assert_close(out.double(), expected, rtol=4e-3, atol=4e-3 * float(expected.abs().mean()))


def test_rows_of_a_larger_weight_and_any_company():
    x, weight = case(Format("int4", 32, symmetric=False), 9, 40, 96)
    whole = packed_linear.launch(x, weight)
    torch.testing.assert_close(
        packed_linear.launch(x, weight.rows(7, 29)), whole[:, 7:29], rtol=1e-6, atol=1e-3
    )
    assert torch.equal(packed_linear.launch(x[2:7], weight), whole[2:7])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_int8(dtype):
    x = torch.randn(5, 77, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[1], [100], [0], [1e-3], [1]]
    )
    x[4, 3] = torch.nan
    x = x.to(dtype)
    numbers, scales = w8a8.launch_rows(x)
    wanted, expected = w8a8.scaled_rows(x)
    assert (
        torch.equal(numbers[:4], wanted[:4]) and torch.equal(scales[:4], expected[:4]) and scales[4].isnan()
    )
    assert (numbers[2] == 0).all() and scales[2] == 1


@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 37, 200), (3, 64, 33), (70, 19, 72)])
def test_int8_times_int8(tokens, n, k):
    x, weight = case(Format("int8"), tokens, n, k)
    bias, add = torch.randn(n), torch.randn(tokens, n)
    numbers, scales = w8a8.scaled_rows(x)
    out = w8a8.launch(numbers, scales, weight, bias, torch.float32, add=add, activation="gelu_tanh")
    expected = w8a8.w8a8_linear(x, weight, bias, add=add, activation="gelu_tanh")
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    exact = (numbers.double() @ weight.integers().double().T) * scales.double() * weight.scales[:, 0].double()
    torch.testing.assert_close(w8a8.w8a8_linear(x, weight).double(), exact, rtol=1e-6, atol=1e-5)
