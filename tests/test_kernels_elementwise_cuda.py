"""The elementwise kernels compiled for a GPU: the interpreter's cases, large shapes, captured graphs. Skipped where
there is none."""

import pytest
import torch
from elementwise_cases import (  # noqa: F401
    Step,
    close_in_heads,
    plain_gated,
    plain_norm,
    randn,
    same_pages,
    slack,
    test_gated,
    test_gated_at_the_ends,
    test_int8_rounds_ties_to_even_and_keeps_faults_visible,
    test_pages_hold_what_write_would_store_and_nothing_else,
    test_rms_norm,
    test_rms_norm_keeps_tokens_apart,
    test_rms_norm_of_a_wide_token_and_of_more_dimensions,
    test_rope,
    test_rope_keeps_tokens_apart,
    test_rope_with_norms_of_every_kind_and_halves_that_differ,
    test_the_sum_is_rounded_before_it_is_normed,
)

from labkit.kernels import gated, pages, rms_norm, rope
from labkit.kernels.rms_norm import Norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = "cuda"


def names_of_kernels(function):
    """Names of the kernels that a call runs on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return {
        event.key for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [2304, 4096, 5120, 16384, 30000])
def test_large_rms_norms(hidden, dtype):
    torch.manual_seed(0)
    x, add, weight = (
        randn(515, hidden, dtype=dtype),
        randn(515, hidden, dtype=dtype),
        randn(hidden, dtype=dtype),
    )
    normed, summed = rms_norm.rms_norm(x, weight, 1e-5, add=add)
    assert torch.equal(summed, x + add)
    torch.testing.assert_close(normed.double(), plain_norm(summed, Norm(weight, 1e-5)), **slack(dtype, 2))
    alone = rms_norm.rms_norm(x[7:8], weight, 1e-5, add=add[7:8])[0]
    assert torch.equal(alone[0], normed[7])


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("tokens", [1, 3, 700])
def test_large_gated(tokens, activation):
    torch.manual_seed(0)
    gate_up = randn(tokens, 2 * 11008, dtype=torch.bfloat16)
    expected = plain_gated(gate_up, activation)
    out = gated.gated(gate_up, activation)
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=1e-3)
    assert torch.equal(out[:1], gated.gated(gate_up[:1], activation))


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(
    "sizes", [(32, 32, 128, 128), (32, 8, 128, 128), (16, 8, 256, 256), (32, 32, 96, 72)], ids=str
)
def test_large_rope(sizes, quantised):
    step = Step(600, *sizes, torch.bfloat16, normed=True, quantised=quantised)
    positional, named = step.arguments(pages=step.pages, slots=step.slots)
    q, k, v = rope.rope_write(*positional, **named)
    close_in_heads((q, k, v), step.plain(), torch.bfloat16, 2)
    expected = Step.empty(*step.pages.keys.shape, torch.bfloat16, quantised)
    pages.write(expected, step.slots, k, v)
    assert same_pages(step.pages, expected)


def test_the_kernels_are_what_runs():
    step = Step(3, 8, 2, 64, 64, torch.bfloat16, normed=True, quantised=True)
    positional, named = step.arguments(pages=step.pages, slots=step.slots)
    x, weight = randn(3, 128, dtype=torch.bfloat16), randn(128, dtype=torch.bfloat16)
    calls = {
        "rope_kernel": lambda: rope.rope_write(*positional, **named),
        "rms_norm_kernel": lambda: rms_norm.rms_norm(x, weight, 1e-6, add=x),
        "gated_kernel": lambda: gated.gated(x, "silu"),
    }
    for name, call in calls.items():
        call()
        assert names_of_kernels(call) == {name}
    doubles = rms_norm.rms_norm(x.double(), weight.double(), 1e-6)
    assert all(map(torch.equal, doubles, rms_norm.reference(x.double(), weight.double(), 1e-6)))
    x.requires_grad_()
    assert gated.gated(x, "silu").requires_grad and rms_norm.rms_norm(x, weight, 1e-6)[0].requires_grad


@pytest.mark.parametrize("quantised", [False, True])
def test_a_captured_graph_follows_its_inputs(quantised):
    """One layer's elementwise work, without the host; padding tokens of slot -1 write nothing."""
    step = Step(6, 8, 2, 64, 64, torch.bfloat16, normed=True, quantised=quantised)
    positional, named = step.arguments(pages=step.pages, slots=step.slots)
    weight = randn(step.qkv.shape[1], dtype=torch.bfloat16, scale=1.0)

    def run(qkv, cos, sin):
        normed, summed = rms_norm.rms_norm(qkv, weight, 1e-6, add=qkv)
        return *rope.rope_write(normed, cos, sin, **named), gated.gated(summed, "silu")

    run(*positional)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(*positional)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*positional)
    blocks, block = step.pages.keys.shape[:2]
    for real in (6, 4, 1, 0):
        step.qkv.copy_(randn(*step.qkv.shape))
        step.slots.copy_(torch.randperm(blocks * block)[:6])
        step.slots[real:] = -1
        for store in (step.pages.keys, step.pages.values):
            store.fill_(torch.nan if store.is_floating_point() else -128)
        for x in outputs:
            x.fill_(torch.nan)
        graph.replay()
        stored = step.pages.keys.clone(), step.pages.values.clone()
        assert all(map(torch.equal, outputs, run(*positional)))
        assert all(map(torch.equal, (x.nan_to_num() for x in stored),
                       (x.nan_to_num() for x in (step.pages.keys, step.pages.values))))  # fmt: skip
        untouched = stored[0].isnan() if not quantised else stored[0] == -128
        assert (~untouched.flatten(0, 1).all(-1).all(-1)).sum() == real


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
    reason="programmatic launch: Hopper",
)
def test_programmatic_launches_give_the_same_bits():
    step = Step(40, 8, 2, 128, 128, torch.bfloat16, normed=True)
    positional, named = step.arguments(pages=step.pages, slots=step.slots)
    weight = randn(step.qkv.shape[1], dtype=torch.bfloat16, scale=1.0)

    def chain(pdl):
        x = step.qkv
        for _ in range(20):
            x = rms_norm.launch(x, weight, 1e-6, add=step.qkv, pdl=pdl)[1]
            q, k, v = rope.launch(x, *positional[1:], **named, pdl=pdl)
            joined = torch.cat([q, k, v], 1).flatten(1)
            x = torch.cat([gated.launch(joined, "silu", pdl=pdl)] * 2, -1)
            x = rms_norm.launch(x, weight, 1e-6, pdl=pdl)[0]
        return x

    expected = chain(False)
    for _ in range(5):
        assert torch.equal(chain(True), expected)


def test_more_than_two_to_the_31_numbers():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of free memory")
    tokens = (1 << 31) // 32768 + 5
    gate_up = torch.zeros(tokens, 32768, dtype=torch.bfloat16, device=DEVICE)
    gate_up[-1] = randn(32768, dtype=torch.bfloat16)
    out = gated.gated(gate_up, "silu")
    assert torch.equal(out[-1], gated.gated(gate_up[-1:], "silu")[0]) and not out[:-1].any()
    normed = rms_norm.rms_norm(gate_up, gate_up[-1], 1e-6)[0]
    assert torch.equal(normed[-1], rms_norm.rms_norm(gate_up[-1:], gate_up[-1], 1e-6)[0][0])
    del gate_up, out, normed
    step = Step(4, 32, 32, 128, 128, torch.bfloat16)
    blocks = (1 << 31) // (16 * 32 * 128) + 9
    store = pages.allocate(blocks, 16, 32, 128, torch.bfloat16, DEVICE)
    slots = torch.arange(4, device=DEVICE) + (blocks - 1) * 16
    positional, named = step.arguments(pages=store, slots=slots)
    _, k, v = rope.rope_write(*positional, **named)
    assert torch.equal(store.keys[-1, :4], k) and torch.equal(store.values[-1, :4], v)
    assert not store.keys[:-1].any()
