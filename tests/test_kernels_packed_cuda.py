"""Packed linear layers, compiled, on a GPU."""

import pytest
import torch

from labkit.kernels import gated, packed_linear, rms_norm, w8a8
from labkit.kernels.device import available
from labkit.kernels.formats import Format
from labkit.kernels.linear import arrival_counters
from labkit.kernels.packed import quantise
from labkit.kernels.rms_norm import Norm

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
DEVICE = torch.device("cuda:0")
if not available(DEVICE):
    pytest.skip("needs a GPU that Triton compiles for", allow_module_level=True)

FORMATS = [
    Format("int8"),
    Format("int8", 64, symmetric=False),
    Format("int8", 16),
    Format("int8", tensor=True),
    Format("fp8"),
    Format("fp8", 128),
    Format("int4", 128, symmetric=False),
    Format("int4", 32),
    Format("int4", 16, symmetric=False),
    Format("int4"),
]


def case(made, tokens, n, k, dtype):
    generator = torch.Generator(DEVICE).manual_seed(tokens + n + k)
    weight = torch.randn(n, k, generator=generator, device=DEVICE)
    weight[1], weight[2, :40] = 0, 0
    x = 3 * torch.randn(tokens, k, generator=generator, device=DEVICE)
    x[:, 5] *= 40
    return x.to(dtype), quantise(weight.to(dtype), made)


def close(out, expected, dtype):
    """Rounding of products and sums, relative to what is summed."""
    slack = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack * float(expected.abs().mean()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("made", FORMATS, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 16, 33, 200])
def test_equal_to_the_reference_in_fp64(tokens, made, dtype):
    for n, k in ((129, 264), (4096, 1152), (37, 200)):
        x, weight = case(made, tokens, n, k, dtype)
        bias, add = torch.randn(n, device=DEVICE).to(dtype), torch.randn(tokens, n, device=DEVICE).to(dtype)
        expected = packed_linear.reference(x.double(), weight, bias.double(), add=add.double())
        counters = arrival_counters(4 * n, DEVICE)
        for counted, pdl in ((None, False), (counters, True)):
            out = torch.full((tokens, n), torch.nan, dtype=dtype, device=DEVICE)
            packed_linear.launch(x, weight, bias, add=add, counters=counted, pdl=pdl, out=out)
            close(out, expected, dtype)
        assert not counters.any()


@pytest.mark.parametrize(
    "made", [Format("int8"), Format("int4", 128, symmetric=False), Format("fp8")], ids=str
)
@pytest.mark.parametrize("tokens", [1, 3, 16, 40])
def test_a_norm_or_a_gate_on_the_way(tokens, made):
    for n, k in ((129, 264), (512, 1152)):
        x, weight = case(made, tokens, n, k, torch.bfloat16)
        add, counters = torch.randn(tokens, n, device=DEVICE).bfloat16(), arrival_counters(4 * n, DEVICE)
        norm = Norm(torch.randn(k, device=DEVICE).bfloat16(), 1e-5)
        normed = rms_norm.reference(x.double(), norm.weight.double(), 1e-5)[0]
        expected = packed_linear.reference(normed, weight, add=add.double())
        out = packed_linear.packed_linear(x, weight, add=add, counters=counters, pdl=True, norm=norm)
        close(out, expected, torch.bfloat16)
        both = torch.randn(tokens, 2 * k, device=DEVICE).bfloat16()
        expected = packed_linear.reference(gated.reference(both.double(), "silu"), weight, add=add.double())
        out = packed_linear.packed_linear(both, weight, add=add, counters=counters, pdl=True, gate="silu")
        close(out, expected, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 5, 64, 300])
def test_int8_products(tokens, dtype):
    for n, k in ((129, 264), (4096, 1152), (37, 200)):
        x, weight = case(Format("int8"), tokens, n, k, dtype)
        numbers, scales = w8a8.scaled_rows(x)
        wanted, expected = w8a8.scaled_rows(x.cpu())
        assert (numbers.cpu().int() - wanted.int()).abs().max() <= 1  # a tie in the last bit of a quotient
        torch.testing.assert_close(scales.cpu(), expected)
        add = torch.randn(tokens, n, device=DEVICE).to(dtype)
        sums = numbers.double() @ weight.integers().double().T
        exact = sums * scales.double() * weight.scales[:, 0].double() + add.double()
        close(w8a8.w8a8_linear(x, weight, add=add), exact, dtype)
        assert torch.equal(w8a8.product(numbers, weight.values).double(), sums)
