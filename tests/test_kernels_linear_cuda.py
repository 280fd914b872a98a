"""Linear layers of a few tokens compiled for a GPU: real shapes, captured graphs, races. Skipped without one."""

import pytest
import torch

from labkit.errors import LabkitError
from labkit.kernels import linear_tiling, tuning
from labkit.kernels.device import available, starts_early
from labkit.kernels.linear import (
    SMALL,
    arrival_counters,
    launch,
    linear,
    reference,
    scratch_numbers,
)
from labkit.kernels.linear_tiling import Tiling
from labkit.kernels.linear_tune import tune
from labkit.timing import compare

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not available(torch.device("cuda:0")),
    reason="no CUDA device that Triton compiles for",
)
DEVICE = torch.device("cuda:0")
SHAPES = [(4096, 4096), (4096, 11008), (1000, 4096), (6144, 1024), (257, 331), (1, 64), (40, 1), (1, 1)]
EPILOGUES = [(False, False, None), (True, True, "gelu"), (False, True, None), (True, False, "gelu_tanh")]


def drawn(tokens, n, k, dtype, seed=0):
    """x and a weight that is the middle of a larger one whose other rows are NaN; bias and residual."""
    torch.manual_seed(seed)
    merged = torch.full((n + 16, k), torch.nan, dtype=dtype, device=DEVICE)
    merged[8 : 8 + n] = 3 * k**-0.5 * torch.randn(n, k, device=DEVICE)
    x, bias, add = (scale * torch.randn(*shape, device=DEVICE)
                    for scale, shape in ((3, (tokens, k)), (4, (n,)), (8, (tokens, n))))  # fmt: skip
    return x.to(dtype), merged[8 : 8 + n], bias.to(dtype), add.to(dtype)


def poisoned(tokens, n, dtype, splits=16):
    numbers = scratch_numbers(tokens, n, splits)
    return {
        "out": torch.full((tokens, n), torch.nan, dtype=dtype, device=DEVICE),
        "scratch": torch.full((numbers + 3,), torch.nan, device=DEVICE),
    }


def close(out, expected, dtype, k=1024):
    """One rounding of the result, and in float32 the order of a sum of k products as large as 10."""
    slack = max(torch.finfo(dtype).eps, 2e-6 * k**0.5)
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack)


def double(*tensors):
    return [None if t is None else t.double() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_reference_in_fp64(shape, epilogue, dtype):
    with_bias, with_add, activation = epilogue
    n, k = shape
    for tokens in (1, 2, 7, SMALL):
        x, weight, bias, add = drawn(tokens, n, k, dtype)
        bias, add = bias if with_bias else None, add if with_add else None
        x64, weight64, bias64, add64 = double(x, weight, bias, add)
        expected = reference(x64, weight64, bias64, add=add64, activation=activation)
        options = {"add": add, "activation": activation}
        counters = arrival_counters(n, DEVICE)
        for splits in (None, 1, 5):
            counted = launch(x, weight, bias, **options, splits=splits, counters=counters,
                             **poisoned(tokens, n, dtype))  # fmt: skip
            alone = launch(x, weight, bias, **options, splits=splits, **poisoned(tokens, n, dtype))
            close(counted, expected, dtype, k)
            assert torch.equal(alone, counted) and not counters.any()
        assert torch.equal(linear(x, weight, bias, **options), launch(x, weight, bias, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 16, 32])
@pytest.mark.parametrize("k", [1024, 1100])
def test_every_candidate_gives_the_same(tokens, k, dtype):
    x, weight, bias, add = drawn(tokens, 515, k, dtype)
    x64, weight64, bias64, add64 = double(x, weight, bias, add)
    expected = reference(x64, weight64, bias64, add=add64, activation="gelu")
    counters = arrival_counters(515, DEVICE)
    for tiling in linear_tiling.candidates(515, k, tokens, dtype.itemsize, 132):
        out = launch(x, weight, bias, add=add, activation="gelu", tiling=tiling, counters=counters,
                     **poisoned(tokens, 515, dtype))  # fmt: skip
        close(out, expected, dtype)


def test_more_tokens_go_to_torch():
    x, weight, bias, add = drawn(SMALL + 1, 300, 512, torch.bfloat16)
    out = linear(x, weight, bias, add=add, activation="gelu")
    assert torch.equal(out, reference(x, weight, bias, add=add, activation="gelu"))


@pytest.mark.parametrize("tokens", [1, 16])
def test_who_comes_last_changes_nothing(tokens):
    """Programs of a split product race for the last place; a share read too early would show."""
    tiling = Tiling(4, 256, 1, 1, 16) if tokens == 1 else Tiling(16, 64, 4, 2, 16)
    x, weight, bias, add = drawn(tokens, 2000, 4096, torch.bfloat16)
    counters = arrival_counters(2000, DEVICE)
    wanted = launch(x, weight, bias, add=add, tiling=tiling)
    places = poisoned(tokens, 2000, torch.bfloat16)
    for _ in range(300):
        places["scratch"].fill_(torch.nan)
        out = launch(x, weight, bias, add=add, tiling=tiling, counters=counters, **places)
        assert torch.equal(out, wanted)
    assert not counters.any()


def test_a_token_gives_the_same_bits_in_any_company():
    x, weight, bias, add = drawn(SMALL, 4096, 4096, torch.bfloat16)
    together = linear(x, weight, bias, add=add)
    for some in (slice(0, 2), slice(5, 16), slice(3, 12)):
        assert torch.equal(linear(x[some], weight, bias, add=add[some]), together[some])


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("pdl", [False, True])
def test_a_captured_chain_of_layers(tokens, counted, pdl):
    """Four layers, each reading what the one before wrote, over shared counters; replayed on new inputs."""
    if pdl and not starts_early(DEVICE):
        pytest.skip("needs Hopper")
    layers = [drawn(tokens, 1024, 1024, torch.bfloat16, seed) for seed in range(4)]
    layers = [(weight / 3, bias) for _, weight, bias, _ in layers]
    x = torch.randn(tokens, 1024, device=DEVICE, dtype=torch.bfloat16)
    counters = arrival_counters(1024, DEVICE) if counted else None

    def chain(product):
        value = x
        for weight, bias in layers:
            value = product(value, weight, bias, value)
        return value

    def step():
        return chain(lambda value, weight, bias, add: linear(
            value, weight, bias, add=add, activation="gelu", splits=3, counters=counters, pdl=pdl))  # fmt: skip

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for seed in range(20):
        torch.manual_seed(seed)
        x.normal_()
        out.fill_(torch.nan)
        graph.replay()
        once = chain(lambda value, weight, bias, add: launch(
            value, weight, bias, add=add, activation="gelu", splits=3))  # fmt: skip
        assert torch.equal(out, once)
    expected = chain(lambda value, weight, bias, add: reference(
        *double(value, weight, bias), add=add.double(), activation="gelu").bfloat16())  # fmt: skip
    slack = 8 * torch.finfo(torch.bfloat16).eps  # four roundings, each seen by the layers after it
    assert (out.double() - expected.double()).abs().max() <= slack * expected.double().abs().max()


def test_no_launch_waits_for_the_host():
    x, weight, bias, add = drawn(3, 515, 1100, torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        linear(x, weight, bias, add=add, splits=3)
        linear(x[:1], weight, bias, add=add[:1])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_weight_of_more_than_two_to_the_31_numbers():
    n, k = (1 << 31) // 8192 + 100, 8192
    if torch.cuda.mem_get_info()[0] < 3 * n * k * 2:
        pytest.skip("needs 13 GB of free memory")
    weight = torch.empty(n, k, dtype=torch.bfloat16, device=DEVICE).normal_()
    for tokens in (1, 5):
        x = torch.randn(tokens, k, dtype=torch.bfloat16, device=DEVICE)
        expected = x.double() @ weight[-100:].double().t()
        out = linear(x, weight)[:, -100:]
        assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_tuning_on_the_device(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    linear_tiling.forget()
    try:
        found = tune([(1000, 1100)], torch.bfloat16, DEVICE, compare)
        tuning.save(tuning.device_name(DEVICE), found)
        linear_tiling.forget()
        for tokens in (1, 16):
            entry = dict(found[f"linear{tokens} bfloat16 1000x1100"])
            assert entry.pop("seconds") > 0
            assert linear_tiling.tiling_for(DEVICE, torch.bfloat16, 1000, 1100, tokens) == Tiling(**entry)
    finally:
        linear_tiling.forget()
    with pytest.raises(LabkitError, match="float64"):
        tune([(1000, 1100)], torch.float64, DEVICE, compare)
