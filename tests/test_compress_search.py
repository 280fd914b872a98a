"""The searches of AWQ and SmoothQuant on single matrices: never worse than rounding, and safe on odd ones."""

import pytest
import torch
from test_compress_methods import drawn
from test_fuse import equal, lm_of
from tiny_architectures import build

from labkit import compress
from labkit.compress import awq, smooth
from labkit.errors import LabkitError
from labkit.kernels.formats import Format

FORMATS = [
    Format("int4", 16, symmetric=False), Format("int4", 32), Format("int8"), Format("fp8"),
    Format("int4"),
]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_search_is_never_worse_than_rounding_and_better_with_outliers(format, seed):
    weight, x = drawn(24, 75, seed=seed).float(), drawn(300, 75, seed=9 + seed).float()
    x[:, :5] *= 40
    moments = x.T @ x / len(x)
    scale, clip = awq.search(weight, x, x.abs().mean(0), format)
    found, rounded = (awq.error(weight, moments, format, *each) for each in ((scale, clip), ()))
    assert found <= rounded
    assert format.kind != "int4" or found < 0.7 * rounded
    plain = drawn(300, 75, seed=19 + seed).float()
    scale, clip = awq.search(weight, plain, plain.abs().mean(0), format)
    moments = plain.T @ plain / len(plain)
    assert awq.error(weight, moments, format, scale, clip) <= awq.error(weight, moments, format)


@pytest.mark.parametrize("format", FORMATS[:3], ids=str)
def test_clips_are_the_best_where_groups_do_not_meet(format):
    weight, moments = drawn(7, 70), torch.diag(drawn(70, seed=1).exp())
    clips = [1.0, 0.9, 0.75, 0.6]
    found = awq.best_clip(weight, moments, format, clips=clips)
    group = format.group or 70
    for number, start in enumerate(range(0, 70, group)):
        span = slice(start, start + group)
        wrong = []
        for each in clips:
            clip = weight.new_full(awq.clip_shape(weight[:, span], format), each)
            apart = compress.quantise(weight[:, span], format, clip=clip).dequantise() - weight[:, span]
            wrong.append((apart.square() * moments.diagonal()[span]).sum(1))
        best = torch.stack(wrong).argmin(0)
        assert torch.equal(found[:, number], weight.new_tensor(clips)[best])
    assert format.kind == "int8" or len(found.unique()) > 1


def test_clips_take_account_of_each_other():
    weight, x = drawn(16, 64), drawn(500, 64, seed=2) + 3  # inputs with a mean: errors of groups add up
    moments, format = x.T @ x / len(x), Format("int4", 16)
    apart = [
        awq.best_clip(weight[:, at : at + 16], moments[at : at + 16, at : at + 16], format)
        for at in range(0, 64, 16)
    ]
    together, alone = (
        awq.error(weight, moments, format, clip=clip)
        for clip in (awq.best_clip(weight, moments, format), torch.cat(apart, 1))
    )
    assert together < 0.9 * alone < awq.error(weight, moments, format)


@pytest.mark.parametrize("dead", [[0, 7], list(range(48))])
def test_channels_of_zeros_get_no_huge_scale(dead):
    weight, x = drawn(8, 48).float(), drawn(60, 48, seed=3).float()
    x[:, dead] = 0
    scale, clip = awq.search(weight, x, x.abs().mean(0), Format("int4", 16))
    other = smooth.scale_of(x.abs().amax(0), weight.abs().amax(0), 0.5)
    for each in (scale, clip, other):
        assert bool(each.isfinite().all()) and 0 < float(each.min()) and float(each.max()) < 100
    weight[:, dead] = 0
    other = smooth.scale_of(x.abs().amax(0), weight.abs().amax(0), 1.0)
    assert bool(other.isfinite().all()) and float(other.min()) > 0


@pytest.mark.parametrize("value", [0.0, -0.7])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_groups_of_equal_weights(value, format):
    weight = torch.full((5, 40), value)
    x = drawn(60, 40).float()
    scale, clip = awq.search(weight, x, x.abs().mean(0), format)
    found = compress.quantise(weight * scale, format, clip=clip).dequantise() / scale
    equal(found, weight, 0.08)


def test_smoothing_evens_out_activations():
    weight, x = drawn(20, 64).float(), drawn(200, 64, seed=4).float()
    x[:, 3] *= 100
    scale = smooth.scale_of(x.abs().amax(0), weight.abs().amax(0), 0.5)
    assert smooth.error(weight, x, scale) < 0.2 * smooth.error(weight, x, torch.ones(64))
    with pytest.raises(LabkitError, match="no share"):
        smooth.smooth(lm_of(build("llama")), None, alpha=1.5)
