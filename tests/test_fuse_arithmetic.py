"""What fusion can gain: Amdahl's law, bytes, launches; and the tape that shows what a capture keeps."""

import math
import random

import pytest
import torch

from labkit.course.tape import Tape
from labkit.errors import LabkitError
from labkit.fuse import arithmetic
from labkit.models import PRESETS
from labkit.profile.shape import Shape


def shape() -> Shape:
    one = PRESETS["8b"]
    return Shape(
        "llama", one.layers, one.hidden, one.heads, one.kv_heads, one.head_dim, one.intermediate, 8192, False,
        True, 0, 0, 0, (None,) * one.layers, False,
    )  # fmt: skip


def test_speedup_is_old_time_over_new():
    draw = random.Random()
    for _ in range(50):
        parts = [draw.uniform(0.1, 5) for _ in range(draw.randint(1, 6))]
        factors = [draw.uniform(0.3, 20) for _ in parts]
        old, new = sum(parts), sum(part / factor for part, factor in zip(parts, factors, strict=True))
        found = arithmetic.speedup([part / old for part in parts[1:]], factors[1:])
        assert found == pytest.approx(old / (new - parts[0] / factors[0] + parts[0]))
    assert arithmetic.bound(0.75) == pytest.approx(4) and arithmetic.bound(1.0) == math.inf
    assert arithmetic.speedup([], []) == 1


@pytest.mark.parametrize("wrong", [([0.6, 0.6], [2, 2]), ([0.5], [2, 2]), ([-0.1], [2]), ([0.5], [0.0])])
def test_speedup_refuses_what_is_no_whole(wrong):
    with pytest.raises(LabkitError):
        arithmetic.speedup(*wrong)


def test_bytes_are_those_of_the_arrays():
    t, h, element = 37, 130, 2
    x = t * h * element
    assert arithmetic.norm_bytes(t, h, element, fused=False) == 3 * x + 2 * x + h * element
    assert arithmetic.norm_bytes(t, h, element, fused=True) == 4 * x + h * element
    assert (
        arithmetic.gated_bytes(t, h, element, fused=False) - arithmetic.gated_bytes(t, h, element, fused=True)
        == 2 * x
    )
    heads, kv, dim = 8, 2, 16
    fused = arithmetic.attention_bytes(t, heads, kv, dim, element, fused=True)
    assert fused == element * dim * t * (heads + heads + kv + kv)
    apart = arithmetic.attention_bytes(t, heads, kv, dim, element, fused=False)
    assert apart - fused == 4 * heads * t * t * element


def test_a_layer_moves_less_fused_and_its_weights_all_the_same():
    for tokens in (1, 64, 2048):
        for one in arithmetic.layer_traffic(shape(), tokens, 2):
            assert 0 < one.fused < one.unfused and one.kernels[0] > one.kernels[1] > 0 and one.flops > 0
    one = PRESETS["8b"]
    matrices = one.parameters(8192) - 2 * 8192 * one.hidden - one.hidden
    assert arithmetic.layer_weights(shape(), 2) == 2 * (matrices // one.layers - 2 * one.hidden)


def test_a_launched_step_is_its_timeline():
    draw = random.Random()
    for _ in range(40):
        kernels, launch, kernel = draw.randint(1, 30), draw.uniform(1, 20), draw.uniform(1, 20)
        host, device = arithmetic.timeline(kernels, launch, kernel)
        assert device[-1][1] == pytest.approx(arithmetic.launched(kernels, launch, kernel))
        assert all(one[1] <= two[0] + 1e-9 for one, two in zip(device, device[1:], strict=False))
        assert all(begin >= ready - 1e-9 for (begin, _), (_, _, ready) in zip(device, host, strict=True))
    with pytest.raises(LabkitError):
        arithmetic.launched(0, 1.0, 1.0)


def test_a_tape_replays_operations_and_nothing_else():
    x, count, calls = torch.ones(6), 2, []

    def work():
        calls.append(1)
        y = x.view(2, 3)  # a view is not an operation, but sees new values
        return (y * 2).sum() + x[:count].sum() + len(calls)

    tape = Tape(work)
    assert tape.result.item() == 12 + 2 + 1 and "mul" in tape.names
    x.fill_(3)
    count = 6
    assert tape.replay() is tape.result
    assert tape.result.item() == 36 + 6 + 1  # two numbers of x, and one call, as it was captured
    x = torch.zeros(6)
    assert tape.replay().item() == 43


def test_a_tape_replays_what_it_changes_in_place():
    count, out = torch.zeros(1, dtype=torch.long), torch.zeros(8)

    def work():
        out.index_copy_(0, count, torch.full((1,), 5.0))
        count.add_(1)

    tape = Tape(work)
    for _ in range(3):
        tape.replay()
    assert count.item() == 4 and out.tolist() == [5.0] * 4 + [0.0] * 4


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: torch.masked_select(x, x > 0),
    ],
)
def test_a_tape_refuses_what_the_host_must_wait_for(work):
    with pytest.raises(LabkitError, match="wait"):
        Tape(lambda: work(torch.randn(5)))
