"""Cases of the elementwise kernels: on the CPU through Triton's interpreter, in a process of its own that
test_kernels_elementwise.py starts, and compiled where there is a GPU (test_kernels_elementwise_cuda.py)."""

import contextlib
import math
import os

import pytest
import torch

from labkit.kernels import gated, pages, rms_norm, rope
from labkit.kernels.rms_norm import Norm

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
NORMS = [{}, {"wide": True}, {"wide": True, "offset": 1.0}, {"offset": 0.5}]
HEADS = [  # heads, KV heads, head dim, rotated, tile
    (6, 2, 128, 128, None),
    (4, 4, 64, 64, None),
    (3, 1, 256, 64, None),
    (5, 5, 40, 30, 4),
    (3, 1, 96, 72, 1),
    (2, 2, 80, 80, 8),
]
# the interpreter is slow: half precision on it for the first shape only
CASES = [
    (shape, dtype)
    for shape in HEADS
    for dtype in FLOATS
    if DEVICE == "cuda" or shape is HEADS[0] or dtype == FLOATS[0]
]


@contextlib.contextmanager
def poisoned():
    """Memory that torch hands out is full of NaN: what a kernel forgets to write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(3)).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def slack(dtype, roundings=1):
    """Relative and absolute error after some roundings; the interpreter cuts bf16 off, twice the error."""
    if dtype == torch.float32:
        return {"rtol": 3e-6, "atol": 3e-6}
    return {
        "rtol": (1 + roundings) * torch.finfo(dtype).eps,
        "atol": (1 + roundings) * torch.finfo(dtype).eps,
    }


def randn(*shape, dtype=torch.float32, scale=4.0):
    """Random numbers, a tenth of which are ten times as large."""
    x = scale * torch.randn(*shape) * (1 + 9 * (torch.rand(*shape) < 0.1))
    return x.to(DEVICE, dtype)


def plain_norm(x, norm):
    """RMSNorm by its formula in float64."""
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * (norm.offset + norm.weight.double())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", NORMS, ids=str)
@pytest.mark.parametrize("hidden", [1, 7, 64, 576, 1500])
def test_rms_norm(hidden, options, dtype):
    torch.manual_seed(hidden)
    x, add = randn(5, hidden, dtype=dtype), randn(5, hidden, dtype=dtype)
    norm = Norm(randn(hidden, dtype=dtype, scale=1.0), 1e-5, **options)
    for other in (None, add):
        with poisoned():
            normed, summed = rms_norm.launch(x, norm.weight, norm.eps, add=other, **options)
        assert normed.dtype == summed.dtype == dtype and normed.shape == x.shape
        if other is None:
            assert summed is x
        else:
            torch.testing.assert_close(summed, x + add, **slack(dtype))
        close = slack(dtype, 2)
        torch.testing.assert_close(normed.double(), plain_norm(summed, norm), **close)
        expected = rms_norm.reference(summed, norm.weight, norm.eps, **options)[0]
        torch.testing.assert_close(normed, expected, **close)


def every_other(x):
    """The same vector, with other numbers between its own in memory."""
    return torch.stack((x, torch.full_like(x, 3)), -1)[..., 0]


def test_vectors_need_not_be_contiguous():
    torch.manual_seed(0)
    x, weight = randn(5, 64), randn(64)
    wanted = rms_norm.launch(x, weight, 1e-5)[0]
    assert torch.equal(rms_norm.launch(x, every_other(weight), 1e-5)[0], wanted)
    qkv, cos, sin, weight = randn(5, 6 * 16), randn(5, 16, scale=1.0), randn(5, 16, scale=1.0), randn(16)
    slots = torch.tensor([5, 0, 7, 2, 3], device=DEVICE)
    found = []
    for each in (torch.clone, every_other):
        norm, store = Norm(each(weight), 1e-5), pages.allocate(3, 4, 2, 16, torch.float32, DEVICE)
        options = {"heads": 2, "kv_heads": 2, "q_norm": norm, "k_norm": norm}
        q, k, _ = rope.launch(qkv, cos, sin, pages=store, slots=each(slots), **options)
        found.append((q, k, store.keys, store.values))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_rms_norm_of_a_wide_token_and_of_more_dimensions():
    torch.manual_seed(0)
    x, weight = randn(1, 3, 16000), randn(16000, scale=1.0)
    with poisoned():
        normed, summed = rms_norm.launch(x, weight, 1e-6, add=x.flip(1))
    torch.testing.assert_close(
        normed.double(), plain_norm(x + x.flip(1), Norm(weight, 1e-6)), **slack(x.dtype)
    )
    assert normed.shape == summed.shape == x.shape
    transposed = randn(48, 3).t()
    with poisoned():
        normed = rms_norm.launch(transposed, weight[:48], 1e-6)[0]
    torch.testing.assert_close(
        normed.double(), plain_norm(transposed, Norm(weight[:48], 1e-6)), **slack(x.dtype)
    )
    assert rms_norm.launch(x[:, :0], weight, 1e-6)[0].shape == (1, 0, 16000)


def test_rms_norm_keeps_tokens_apart():
    torch.manual_seed(1)
    x, add, weight = randn(6, 333), randn(6, 333), randn(333, scale=1.0)
    together = rms_norm.launch(x, weight, 1e-6, add=add)[0]
    for row in range(6):
        alone = rms_norm.launch(x[row : row + 1], weight, 1e-6, add=add[row : row + 1])[0]
        assert torch.equal(alone[0], together[row])
    x[2, 7], x[4] = torch.nan, 0
    add[4] = 0
    out = rms_norm.launch(x, weight, 1e-6, add=add)[0]
    assert out[2].isnan().all() and (out[4] == 0).all()
    assert torch.equal(out[[0, 1, 3, 5]], together[[0, 1, 3, 5]])


def test_the_sum_is_rounded_before_it_is_normed():
    """As in the unfused model, whose residual stream is stored: 256 + 0.9375 is 256 in bfloat16."""
    torch.manual_seed(2)
    large, small = torch.full((1, 32), 256.0), 1 + torch.rand(1, 32)
    x = torch.cat([large, small], 1).to(DEVICE, torch.bfloat16)
    add = torch.cat([0 * large + 0.9375, 0 * small], 1).to(DEVICE, torch.bfloat16)
    weight = torch.ones(64, device=DEVICE, dtype=torch.bfloat16)
    normed, summed = rms_norm.launch(x, weight, 0.0, add=add)
    assert torch.equal(summed, x)
    assert torch.equal(normed, rms_norm.launch(x, weight, 0.0)[0])


def plain_gated(gate_up, activation):
    """act(gate) · up by the formulas, in float64."""
    gate, up = gate_up.double().chunk(2, -1)
    if activation == "silu":
        return gate * torch.sigmoid(gate) * up
    if activation == "gelu":
        return gate * torch.special.ndtr(gate) * up
    return gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("shape", "tile"), [((3, 14), None), ((2, 2, 1550), 512), ((1, 2064), 1024)])
def test_gated(shape, tile, activation, dtype):
    torch.manual_seed(shape[-1])
    gate_up = randn(*shape, dtype=dtype)
    with poisoned():
        out = gated.launch(gate_up, activation, tile=tile)
    assert out.dtype == dtype and out.shape == (*shape[:-1], shape[-1] // 2)
    gate, up = gate_up.double().chunk(2, -1)
    for expected, roundings in (
        (plain_gated(gate_up, activation), 1),
        (gated.reference(gate_up, activation), 2),
    ):
        # 1 + erf and 1 + tanh lose digits to cancellation: part of the error is of gate · up, not of the result
        most = slack(dtype, roundings)["rtol"] * expected.abs() + 5e-7 * (gate * up).abs()
        assert ((out.double() - expected.double()).abs() <= most + torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_at_the_ends(activation):
    gate = torch.tensor([-1e4, -150.0, -90.0, -20.0, -0.0, 0.0, 20.0, 90.0, 1e4, torch.inf, torch.nan])
    gate_up = torch.cat([gate, torch.full_like(gate, 2.0)])[None].to(DEVICE)
    out, expected = gated.launch(gate_up, activation), plain_gated(gate_up, activation)
    torch.testing.assert_close(out.double(), expected, rtol=3e-6, atol=3e-6, equal_nan=True)
    assert out[0, -1].isnan() and out[0, :-1].isnan().sum() == 0
    assert gated.launch(gate_up[:0], activation).shape == (0, 11)


class Step:
    """Random tokens of a merged projection, their angles, and a store full of NaN (or of -128 in int8)."""

    def __init__(self, tokens, heads, kv_heads, dim, rotated, dtype, *, normed=False, quantised=False, block=5,
                 same_halves=True, **options):  # fmt: skip
        torch.manual_seed(heads * dim + tokens)
        self.qkv = randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
        angles = 30 * torch.randn(tokens, rotated // 2)
        angles = torch.cat([angles, angles if same_halves else 30 * torch.randn_like(angles)], -1)
        self.cos, self.sin = (1.1 * angles.cos()).to(DEVICE, dtype), (1.1 * angles.sin()).to(DEVICE, dtype)
        norms = [
            Norm(randn(dim, dtype=dtype, scale=1.0), 1e-5, **options) if normed else None for _ in range(2)
        ]
        self.q_norm, self.k_norm = norms
        self.pages = self.empty(tokens // block + 3, block, kv_heads, dim, dtype, quantised)
        self.slots = torch.randperm(len(self.pages.keys) * block)[:tokens].to(DEVICE)
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim

    @staticmethod
    def empty(blocks, block, kv_heads, dim, dtype, quantised):
        store = pages.allocate(blocks, block, kv_heads, dim, dtype, DEVICE, quantised=quantised)
        for tensor in (store.keys, store.values, store.key_scales, store.value_scales):
            if tensor is not None:
                tensor.fill_(torch.nan if tensor.is_floating_point() else -128)
        return store

    def arguments(self, **changes):
        named = {"heads": self.heads, "kv_heads": self.kv_heads, "q_norm": self.q_norm, "k_norm": self.k_norm}
        return (self.qkv, self.cos, self.sin), {**named, **changes}

    def plain(self):
        """q, k, v by the formulas in float64, pair by pair."""
        rows = self.qkv.double().view(len(self.qkv), -1, self.dim)
        q, k, v = rows.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.q_norm:
            q, k = plain_norm(q, self.q_norm), plain_norm(k, self.k_norm)
        half = self.cos.shape[1] // 2
        cos, sin = self.cos.double()[:, None], self.sin.double()[:, None]
        turned = []
        for x in (q, k):
            out = x.clone()
            out[..., :half] = x[..., :half] * cos[..., :half] - x[..., half : 2 * half] * sin[..., :half]
            out[..., half : 2 * half] = (
                x[..., half : 2 * half] * cos[..., half:] + x[..., :half] * sin[..., half:]
            )
            turned.append(out)
        return *turned, v


def close_in_heads(found, expected, dtype, roundings):
    """Rotation moves error between the numbers of a pair, so error is of a head's largest number."""
    for x, y in zip(found, expected, strict=True):
        most = roundings * max(torch.finfo(dtype).eps, 5e-7) * y.double().abs().amax(-1, keepdim=True)
        assert ((x.double() - y.double()).abs() <= most).all()


def same_bits(one, other):
    """Whether tensors are equal, NaN to NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def same_pages(one, other):
    pairs = [
        (getattr(one, name), getattr(other, name))
        for name in ("keys", "values", "key_scales", "value_scales")
    ]
    return all(same_bits(a, b) for a, b in pairs if a is not None)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_rope(shape, normed, dtype):
    *sizes, tile = shape
    step = Step(3, *sizes, dtype, normed=normed)
    positional, named = step.arguments()
    for store in (None, step.pages):
        with poisoned():
            q, k, v = rope.launch(
                *positional, **named, pages=store, slots=step.slots if store else None, tile=tile
            )
        assert q.is_contiguous() and k.is_contiguous() and q.dtype == k.dtype == v.dtype == dtype
        assert [tuple(x.shape[1:]) for x in (q, k, v)] == [
            (h, sizes[2]) for h in (sizes[0], sizes[1], sizes[1])
        ]
        close_in_heads((q, k, v), step.plain(), dtype, 4 if normed else 2)
        close_in_heads((q, k, v), rope.reference(*positional, **named), dtype, 6 if normed else 3)


@pytest.mark.parametrize("options", NORMS, ids=str)
def test_rope_with_norms_of_every_kind_and_halves_that_differ(options):
    step = Step(3, 6, 2, 128, 96, torch.float32, normed=True, same_halves=False, **options)
    positional, named = step.arguments()
    with poisoned():
        found = rope.launch(*positional, **named)
    for x, expected in zip(found, step.plain(), strict=True):
        torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_pages_hold_what_write_would_store_and_nothing_else(shape, dtype, quantised):
    *sizes, tile = shape
    step = Step(5, *sizes, dtype, quantised=quantised)
    step.qkv[1] = 0  # a scale of 0
    step.slots[[2, 3]] = torch.tensor([-1, -7], device=DEVICE)
    if tile is None:  # slots may be int32 too
        step.slots = step.slots.int()
    positional, named = step.arguments()
    _, k, v = rope.launch(*positional, **named, pages=step.pages, slots=step.slots, tile=tile)
    expected = Step.empty(*step.pages.keys.shape, dtype, quantised)
    kept = step.slots >= 0
    pages.write(expected, step.slots[kept].long(), k[kept], v[kept])
    assert same_pages(step.pages, expected)


@pytest.mark.parametrize("rotated", [64, 32])
def test_int8_rounds_ties_to_even_and_keeps_faults_visible(rotated):
    step = Step(5, 1, 1, 64, rotated, torch.float32, quantised=True)
    step.cos[:], step.sin[:] = 1, 0  # values pass as they are, so that ties stay ties
    ties = torch.arange(64, device=DEVICE) - 31.5
    step.qkv[0] = torch.cat([ties, ties, ties.flip(0)])
    step.qkv[0, [64, 128]] = 127.0  # steps of 1
    step.qkv[1, 64 + 3], step.qkv[1, 128 + 63] = torch.nan, torch.nan
    step.qkv[2, 64 + 60], step.qkv[2, 128 + 1] = torch.inf, -torch.inf
    step.qkv[3, 64], step.qkv[3, 65] = torch.inf, torch.nan
    step.sin[:] = 0.0
    positional, named = step.arguments()
    _, k, v = rope.launch(*positional, **named, pages=step.pages, slots=step.slots)
    expected = Step.empty(*step.pages.keys.shape, torch.float32, True)
    pages.write(expected, step.slots, k, v)
    assert same_pages(step.pages, expected)
    block, place = int(step.slots[0]) // 5, int(step.slots[0]) % 5
    assert step.pages.values[block, place, 0, 1:5].tolist() == [30, 30, 28, 28]
    for token in (1, 2):
        slot = int(step.slots[token])
        assert step.pages.key_scales[slot // 5, slot % 5].isnan().all()
        assert step.pages.value_scales[slot // 5, slot % 5].isnan().all()


def test_rope_keeps_tokens_apart():
    step = Step(5, 6, 2, 64, 48, torch.float32, normed=True)
    positional, named = step.arguments()
    together = rope.launch(*positional, **named)
    for row in range(5):
        one = slice(row, row + 1)
        alone = rope.launch(*(x[one] for x in positional), **named)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))
    step.qkv[2, 5] = torch.nan  # of query head 0
    q, k, v = rope.launch(*positional, **named)
    assert q[2, 0].isnan().all() and q[2, 1:].isfinite().all() and k.isfinite().all() and v.isfinite().all()
    assert torch.equal(q[[0, 1, 3, 4]], together[0][[0, 1, 3, 4]])
    empty = rope.launch(*(x[:0] for x in positional), **named, pages=step.pages, slots=step.slots[:0])
    assert [tuple(x.shape) for x in empty] == [(0, 6, 64), (0, 2, 64), (0, 2, 64)]
    assert step.pages.keys.isnan().all()
