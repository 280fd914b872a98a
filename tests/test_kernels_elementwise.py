"""RMSNorm, gated activations and rotary positions: the torch references against transformers' own modules, and the
Triton kernels through the interpreter, in a process where nothing imported Triton before."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen3 import modeling_qwen3

from labkit.errors import LabkitError
from labkit.kernels import gated, pages, rms_norm, rope
from labkit.kernels.rms_norm import Norm

CASES = Path(__file__).with_name("elementwise_cases.py")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FAMILIES = {
    modeling_llama.LlamaRMSNorm: {},
    modeling_qwen3.Qwen3RMSNorm: {},
    Olmo2RMSNorm: {"wide": True},
    GemmaRMSNorm: {"wide": True, "offset": 1.0},
    modeling_gemma3.Gemma3RMSNorm: {"wide": True, "offset": 1.0},
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernels_through_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def module(kind, dim, dtype):
    """One of transformers' norms with a random weight, and the same as data."""
    made = kind(dim, eps=1e-5)
    nn.init.normal_(made.weight, std=2.0)
    made = made.to(dtype)
    return made, Norm(made.weight.detach(), 1e-5, **FAMILIES[kind])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_rms_norm_is_transformers_bit_for_bit(kind, dtype):
    torch.manual_seed(3)
    made, norm = module(kind, 77, dtype)
    x, add = (20 * torch.randn(2, 5, 77, dtype=dtype) for _ in range(2))
    options = FAMILIES[kind]
    normed, summed = rms_norm.rms_norm(x, norm.weight, norm.eps, **options)
    assert summed is x and torch.equal(normed, made(x)) and normed.dtype == dtype
    normed, summed = rms_norm.rms_norm(x, norm.weight, norm.eps, add=add, **options)
    assert torch.equal(summed, x + add) and torch.equal(normed, made(x + add))
    x[1, 2, 3] = torch.nan
    normed = rms_norm.rms_norm(x, norm.weight, norm.eps, **options)[0]
    assert normed[1, 2].isnan().all() and normed.isnan().sum() == 77


def test_a_weight_of_a_wider_dtype_widens_as_in_transformers():
    x = 3 * torch.randn(4, 33, dtype=torch.bfloat16)
    for kind, options in FAMILIES.items():
        made, norm = module(kind, 33, torch.float32)
        normed = rms_norm.rms_norm(x, norm.weight, norm.eps, **options)[0]
        assert normed.dtype == made(x).dtype and torch.equal(normed, made(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("ours", "theirs"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh")]
)
def test_gated_is_transformers(ours, theirs, dtype):
    torch.manual_seed(4)
    gate, up = (20 * torch.randn(2, 5, 77, dtype=dtype) for _ in range(2))
    out = gated.gated(torch.cat([gate, up], -1), ours)
    expected = ACT2FN[theirs](gate) * up
    # the last bit depends on where in a row torch's vectorised loop ends, and 1 + erf may cancel
    most = 4 * torch.finfo(dtype).eps * (expected.abs() + (gate * up).abs())
    assert ((out - expected).abs() <= most).all()
    first, second = torch.cat([gate, up], -1).chunk(2, -1)  # as Phi-3 does
    assert torch.equal(out, second * ACT2FN[theirs](first)) and out.dtype == dtype
    with pytest.raises(LabkitError, match="'relu'"):
        gated.gated(torch.ones(2, 8), "relu")
    with pytest.raises(LabkitError, match="7 columns"):
        gated.gated(torch.ones(2, 7), "silu")


def rotary(family, dim):
    """Rotary embedding of a family, its apply function and the norm of its heads."""
    sizes = {"hidden_size": 4 * dim, "num_attention_heads": 4, "num_key_value_heads": 2}
    if family == "phi3":
        rope_of = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
        config = Phi3Config(**sizes, rope_parameters=rope_of, pad_token_id=0)
        return modeling_phi3.Phi3RotaryEmbedding(config), modeling_phi3.apply_rotary_pos_emb, None
    if family == "qwen3":
        made = modeling_qwen3.Qwen3RotaryEmbedding(Qwen3Config(**sizes, head_dim=dim))
        return made, modeling_qwen3.apply_rotary_pos_emb, modeling_qwen3.Qwen3RMSNorm
    if family == "gemma3":
        made = modeling_gemma3.Gemma3RotaryEmbedding(Gemma3TextConfig(**sizes, head_dim=dim))
        apply, norm = modeling_gemma3.apply_rotary_pos_emb, modeling_gemma3.Gemma3RMSNorm
        return lambda x, positions: made(x, positions, "sliding_attention"), apply, norm
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    made = modeling_llama.LlamaRotaryEmbedding(LlamaConfig(**sizes, head_dim=dim, rope_parameters=scaled))
    return made, modeling_llama.apply_rotary_pos_emb, None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3", "gemma3"])
@torch.no_grad()
def test_rope_is_transformers_bit_for_bit(family, dim, dtype):
    torch.manual_seed(dim)
    embed, apply, kind = rotary(family, dim)
    tokens, heads, kv_heads = 9, 4, 2
    qkv = 5 * torch.randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    positions = torch.randint(0, 1000, (1, tokens))
    cos, sin = embed(qkv, positions)
    assert cos.shape[-1] == (dim * 3 // 4 if family == "phi3" else dim)
    parts = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    q, k, v = (part.view(1, tokens, -1, dim) for part in parts)
    norms = [None, None]
    if kind:
        (q_module, q_norm), (k_module, k_norm) = module(kind, dim, dtype), module(kind, dim, dtype)
        q, k, norms = q_module(q), k_module(k), [q_norm, k_norm]
    q, k = apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    store = pages.allocate(4, 5, kv_heads, dim, dtype, "cpu")
    slots = torch.randperm(20)[:tokens]
    slots[4] = -1
    found = rope.rope_write(qkv, cos[0], sin[0], heads=heads, kv_heads=kv_heads, pages=store, slots=slots,
                            q_norm=norms[0], k_norm=norms[1])  # fmt: skip
    for one, expected in zip(found, (q[0].transpose(0, 1), k[0].transpose(0, 1), v[0]), strict=True):
        assert one.dtype == dtype and torch.equal(one, expected)
    kept = slots >= 0
    keys, values = pages.read(store, slots[kept], dtype)
    assert torch.equal(keys, found[1][kept]) and torch.equal(values, found[2][kept])
    assert store.keys.flatten(0, 1).any((1, 2)).sum() == tokens - 1


@pytest.mark.parametrize("slots", [[3, -1, 0], [-1, -1, -1]])
def test_int8_pages_are_those_of_write(slots):
    torch.manual_seed(5)
    qkv, angles = 9 * torch.randn(3, 4 * 6, dtype=torch.float64), torch.randn(3, 4)
    slots = torch.tensor(slots, dtype=torch.int32)
    stores = [pages.allocate(2, 3, 1, 6, torch.float64, "cpu", quantised=True) for _ in range(2)]
    _, k, v = rope.rope_write(
        qkv, angles.cos(), angles.sin(), heads=2, kv_heads=1, pages=stores[0], slots=slots
    )
    pages.write(stores[1], slots[slots >= 0].long(), k[slots >= 0], v[slots >= 0])
    for name in ("keys", "values", "key_scales", "value_scales"):
        assert torch.equal(getattr(stores[0], name), getattr(stores[1], name))
    assert stores[0].keys.any() == (slots >= 0).any()


def test_one_norm_alone():
    torch.manual_seed(6)
    qkv, ones = torch.randn(3, 4 * 8), torch.ones(3, 8)
    norm = Norm(torch.full((8,), 2.0), 1e-6)
    plain = rope.rope_write(qkv, ones, 0 * ones, heads=2, kv_heads=1)
    q, k, v = rope.rope_write(qkv, ones, 0 * ones, heads=2, kv_heads=1, k_norm=norm)
    assert torch.equal(q, plain[0]) and torch.equal(v, plain[2])
    torch.testing.assert_close(k.pow(2).mean(-1), torch.full((3, 1), 4.0))


def test_shapes_that_do_not_fit_are_refused():
    qkv, cos, slots = torch.randn(3, 4 * 8), torch.randn(3, 8), torch.arange(3)
    store = pages.allocate(2, 3, 1, 8, torch.float32, "cpu")
    good = {"heads": 2, "kv_heads": 1, "pages": store, "slots": slots}
    rope.rope_write(qkv, cos, cos, **good)
    for change, words in (
        ({"heads": 3}, "projection"),
        ({"slots": None}, "no slots"),
        ({"slots": slots[:2]}, "2 slots"),
        ({"pages": pages.allocate(2, 3, 2, 8, torch.float32, "cpu")}, "do not fit"),
    ):
        with pytest.raises(LabkitError, match=words):
            rope.rope_write(qkv, cos, cos, **{**good, **change})
    for angles, words in ((cos[:2], "projection"), (cos[:, :7], "pairs"), (cos.repeat(1, 2), "pairs"),
                          (cos[:, :0], "pairs")):  # fmt: skip
        with pytest.raises(LabkitError, match=words):
            rope.rope_write(qkv, angles, angles, **good)


def test_gradients_are_those_of_the_formula():
    x = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: gated.gated(y, "gelu_tanh"), x)
    assert torch.autograd.gradcheck(
        lambda y: rope.rope_write(y, angles.cos(), angles.sin(), heads=1, kv_heads=1)[:2], x
    )


@pytest.mark.parametrize("tokens", [1, 17])
def test_a_tile_depends_on_no_number_of_tokens(tokens, monkeypatch):
    """What makes a token's bits independent of its company: the launch of one size, but for the grid."""
    calls = []

    class Kernel:
        INTERPRETED = False

        def __getitem__(self, grid):
            return lambda *args, **named: calls.append((grid[0], named))

    Kernel.rope_kernel = Kernel.rms_norm_kernel = Kernel()
    monkeypatch.setattr(rope, "_kernels", lambda: Kernel)
    monkeypatch.setattr(rms_norm, "_kernels", lambda: Kernel)
    for count in (tokens, 3 * tokens):
        qkv, cos = torch.ones(count, 40 * 128), torch.ones(count, 128)
        rope.launch(qkv, cos, cos, heads=32, kv_heads=4)
        rms_norm.launch(qkv, qkv[0], 1e-5)
    assert calls[2][0] == 3 * calls[0][0] and calls[2][1] == calls[0][1]
    assert calls[3][0] == 3 * calls[1][0] and calls[3][1] == calls[1][1]
