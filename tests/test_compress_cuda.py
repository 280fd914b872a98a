"""Quantised models on a GPU: kernels, fused layers, graphs and the engine together say what the plain forward says."""

import pytest
import torch

import labkit
from labkit import compress, fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.kernels.device import available
from labkit.kernels.formats import Format
from labkit.models.linear import QuantizedLinear

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
DEVICE = torch.device("cuda:0")
if not available(DEVICE):
    pytest.skip("needs a GPU that Triton compiles for", allow_module_level=True)

SCHEMES = ["int8", "int4", "fp8", "w8a8", Format("int4", 32), Format("int8", 64, symmetric=False)]
REQUESTS = [
    Request(prompt=[(7 * i + 3 * j) % 900 + 5 for j in range(3 + 29 * i)], max_tokens=12, ignore_eos=True)
    for i in range(6)
]


@pytest.fixture(scope="module")
def lm():
    return labkit.load("labcoder", device="cuda", dtype="float32")


def answers(small, **options):
    with engine_for(small, rows=6, blocks=128, step_tokens=64, **options) as engine:
        return [ticket.first.tokens for ticket in engine.run(REQUESTS)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_fused_and_captured_it_says_the_same(lm, scheme):
    small = compress.quantize(lm, scheme)
    plain = answers(small)
    fuse.apply(small)
    assert answers(small) == plain
    with engine_for(small, rows=6, blocks=128, step_tokens=64, graphs=True) as engine:
        assert engine.runner._graphs.refused is None
        assert [ticket.first.tokens for ticket in engine.run(REQUESTS)] == plain


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_it_is_the_model_with_rounded_weights(lm, scheme):
    small = compress.quantize(lm, scheme)
    plain = compress.shared_copy(lm.model)
    for name, module in small.model.named_modules():
        if isinstance(module, QuantizedLinear):
            linear = plain.get_submodule(name)
            linear.weight = torch.nn.Parameter(module.packed.dequantise(torch.float32), requires_grad=False)
    ids = torch.randint(5, 900, (1, 70), device=DEVICE)
    with torch.inference_mode():
        for count in (1, 9, 70):
            found, wanted = (model(ids[:, :count]).logits for model in (small.model, plain))
            torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
