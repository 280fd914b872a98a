"""Kernels compiled for a GPU that is not there, run by test_kernels_compile.py in a process of its own.

The interpreter runs Python: it accepts variables that change their type, products that no tensor core has and
options that no GPU knows. Triton's compiler and NVIDIA's assembler need no GPU to refuse them.
"""

import os
from dataclasses import replace

assert os.environ.get("TRITON_INTERPRET") == "0", "run through test_kernels_compile.py"

import pytest  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from labkit.kernels import (  # noqa: E402
    draws,
    gated,
    linear,
    linear_tiling,
    packed_linear,
    packed_tiling,
    paged_decode,
    pages,
    prefill,
    rms_norm,
    rope,
    w8a8,
)
from labkit.kernels.formats import Format  # noqa: E402
from labkit.kernels.packed import quantise  # noqa: E402


class Absent:
    """As much of a driver as compiling asks for: a GPU of some generation."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)


@pytest.fixture(autouse=True, params=[80, 90], ids=["Ampere", "Hopper"])
def capability(request, monkeypatch):
    """Every launch compiles for that generation, and runs nothing."""
    compiled, run = [], JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        compiled.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    triton.runtime.driver.set_active(Absent(request.param))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    for room in (gated, linear, packed_linear, paged_decode, rms_norm, rope):
        if hasattr(room, "starts_early"):
            monkeypatch.setattr(room, "starts_early", lambda device: request.param >= 90)
    yield request.param
    assert compiled and all("cubin" in kernel.asm for kernel in compiled)


HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


@HALVES
@pytest.mark.parametrize("tokens", [1, 5])
def test_linear(tokens, dtype, capability):
    x, weight = torch.zeros(tokens, 264, dtype=dtype), torch.zeros(72, 264, dtype=dtype)
    tiling = linear_tiling.default_tiling(72, 264, linear_tiling.padded(tokens), dtype.itemsize, 132)
    counters = linear.arrival_counters(72, "cpu")
    for splits, counted in ((1, None), (2, None), (2, counters)):
        linear.launch(x, weight, weight[:, 0], add=x[:, :72], activation="gelu", splits=splits, counters=counted,
                      tiling=tiling, pdl=capability >= 90)  # fmt: skip


@HALVES
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize(
    "made",
    [Format("int8"), Format("fp8", 32), Format("int4", 128, symmetric=False), Format("int4", 16)],
    ids=str,
)
def test_packed_linear(made, tokens, dtype, capability):
    if (
        made.kind == "fp8" and capability < 89
    ):  # there is none before Ada, and packed_linear takes the reference
        made = Format("int8", 32, symmetric=False)
    x, weight = torch.zeros(tokens, 512, dtype=dtype), quantise(torch.zeros(72, 512, dtype=dtype), made)
    tiling = packed_tiling.default_tiling(
        72, 512, packed_tiling.padded(tokens), made, 132, exact=dtype == torch.float32
    )
    packed_linear.launch(x, weight, x[0, :72], add=x[:, :72], tiling=tiling, pdl=capability >= 90)
    counters = linear.arrival_counters(200, "cpu")
    packed_linear.launch(x, weight, tiling=replace(tiling, splits=2), counters=counters)
    packed_linear.launch(x, weight, tiling=tiling, norm=rms_norm.Norm(x[0], 1e-5))
    packed_linear.launch(torch.zeros(tokens, 1024, dtype=dtype), weight, tiling=tiling, gate="silu")


@pytest.mark.parametrize("tokens", [1, 70])
def test_w8a8(tokens):
    weight = quantise(torch.zeros(72, 512), Format("int8"))
    numbers, scales = w8a8.launch_rows(torch.zeros(tokens, 512, dtype=torch.bfloat16))
    w8a8.launch(numbers, scales, weight, None, torch.bfloat16)


@HALVES
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 128), (6, 2, 64)])
@pytest.mark.parametrize("quantised", [False, True])
def test_paged_decode(heads, kv_heads, dim, quantised, dtype, capability):
    store = pages.allocate(4, 16, kv_heads, dim, dtype, "cpu", quantised=quantised)
    query, table = torch.zeros(2, heads, dim, dtype=dtype), torch.zeros(2, 64, dtype=torch.int32)
    visible, counters = torch.ones(2, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    for shares, options in ((1, {"window": 40}), (3, {"softcap": 20.0}), (3, {"counters": counters})):
        paged_decode.launch(
            query, store, table, visible, scale=0.1, shares=shares, pdl=capability >= 90, **options
        )


@pytest.mark.parametrize("quantised", [False, True])
def test_prefill(quantised):
    store = pages.allocate(4, 16, 2, 64, torch.bfloat16, "cpu", quantised=quantised)
    query, table = torch.zeros(9, 6, 64, dtype=torch.bfloat16), torch.zeros(2, 4, dtype=torch.int32)
    starts, visible = torch.tensor([0, 4, 9]).int(), torch.tensor([4, 5]).int()
    for options in ({}, {"window": 7, "softcap": 20.0}):
        prefill.launch(query, store, table, starts, visible, scale=0.1, **options)


def test_elementwise(capability):
    pdl, x = capability >= 90, torch.zeros(3, 96, dtype=torch.bfloat16)
    rms_norm.launch(x, x[0], 1e-6, add=x, pdl=pdl)
    rms_norm.launch(x, x[0], 1e-6, offset=1.0, wide=True, pdl=pdl)
    for activation in ("silu", "gelu", "gelu_tanh"):
        gated.launch(torch.zeros(3, 192, dtype=torch.bfloat16), activation, pdl=pdl)
    angles, slots = torch.zeros(3, 32, dtype=torch.bfloat16), torch.arange(3)
    store = pages.allocate(4, 16, 2, 32, torch.bfloat16, "cpu", quantised=True)
    norm = rms_norm.Norm(x[0, :32], 1e-6, 0.0, False)
    for options in ({}, {"pages": store, "slots": slots, "q_norm": norm, "k_norm": norm}):
        rope.launch(
            torch.zeros(3, 256, dtype=torch.bfloat16), angles, angles, heads=4, kv_heads=2, pdl=pdl, **options
        )


def test_draws():
    settings, places = torch.zeros(4, draws.WORDS, dtype=torch.int64), torch.arange(2)
    draws.draw(torch.zeros(2, 300, dtype=torch.bfloat16), settings, places, places)
