"""Pruning: what is cut out is gone and nothing else, scores are what they claim, and training leaves no trace."""

import copy
import json

import pytest
import torch
from tiny_architectures import MODELS, build
from tiny_models import VOCAB, save, tiny_llama, tiny_tokenizer
from torch import nn

from labkit import fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.compress.prune import (
    Counts,
    Importance,
    choose,
    counts,
    importance,
    learning_rate,
    magnitude,
    recover,
    refit,
    shrink,
    smallest,
    sparsity,
    study,
    units,
    until,
)
from labkit.compress.text import training_tokens
from labkit.errors import LabkitError
from labkit.models import LM, Shape, inflate, inflated_config, load

KNOWN = [name for name in MODELS if name not in ("gpt2", "olmo2")]
CPU = torch.device("cpu")
F64 = torch.float64


def lm_of(model, name="tiny"):
    return LM(model, tiny_tokenizer(), name, CPU, model.dtype)


def ids_of(lm, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(lm.config.vocab_size, shape, generator=generator)


@torch.no_grad()
def logits(lm, ids):
    return lm.model(ids, use_cache=False).logits


def drawn(lm, kv_heads, each, neurons, seed=0):
    """Random units to keep, other ones in every layer, in no order."""
    found, generator = units(lm), torch.Generator().manual_seed(seed)

    def some(count, of):
        return torch.randperm(of, generator=generator)[:count]

    heads = [
        torch.cat([group * found.group + some(each, found.group) for group in some(kv_heads, found.kv_heads)])
        for _ in found.layers
    ]
    return torch.stack(heads), torch.stack([some(neurons, found.neurons) for _ in found.layers])


def without(lm, heads, neurons):
    """A copy with the columns that read all other units set to zero."""
    model, width = copy.deepcopy(lm.model), units(lm).head_dim
    with torch.no_grad():
        for index, layer in enumerate(model.get_decoder().layers):
            out, down = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
            for head in set(range(out.shape[1] // width)) - set(heads[index].tolist()):
                out[:, head * width : (head + 1) * width] = 0
            for neuron in set(range(down.shape[1])) - set(neurons[index].tolist()):
                down[:, neuron] = 0
    return lm_of(model)


# --- smaller matrices


@pytest.mark.parametrize("kept", [(2, 2, 37), (1, 3, 64), (1, 1, 1), (2, 3, 48)], ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_a_smaller_model_equals_the_whole_one_with_those_units_at_zero(name, kept):
    lm = lm_of(build(name))
    before, ids = copy.deepcopy(lm.model.state_dict()), ids_of(lm, 3, 29)
    heads, neurons = drawn(lm, *kept)
    small = shrink(lm, heads, neurons)
    wanted = logits(without(lm, heads, neurons), ids)
    torch.testing.assert_close(logits(small, ids), wanted, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(wanted, logits(lm, ids), atol=1e-3), "nothing was cut"

    found = units(small)
    assert (found.heads, found.kv_heads, found.neurons) == (kept[0] * kept[1], kept[0], kept[2])
    assert type(small.model) is type(lm.model) and small.model.dtype == F64 and not small.model.training
    assert all(torch.equal(each, before[key]) for key, each in lm.model.state_dict().items())
    old = {each.untyped_storage().data_ptr() for each in lm.model.state_dict().values()}
    assert not old & {each.untyped_storage().data_ptr() for each in small.model.state_dict().values()}


def test_kv_heads_that_all_serve_one_query_go_as_groups():
    lm = lm_of(tiny_llama(dtype=F64, num_key_value_heads=6))
    keep = counts(lm, 0.4, multiple=1)
    assert keep.kv_heads == keep.heads < 6 and abs(keep.removed - 0.4) < 0.01
    heads, neurons = drawn(lm, keep.heads, 1, keep.neurons)
    ids = ids_of(lm, 2, 19)
    wanted = logits(without(lm, heads, neurons), ids)
    torch.testing.assert_close(logits(shrink(lm, heads, neurons), ids), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.6])
def test_counts_remove_the_share_that_was_asked_for(share):
    lm = lm_of(tiny_llama())
    keep = counts(lm, share, multiple=2)
    small = shrink(lm, *drawn(lm, keep.kv_heads, keep.heads // keep.kv_heads, keep.neurons))

    def prunable(each):
        return sum(w.numel() for name, w in each.model.named_parameters() if "_proj" in name)

    assert keep.removed == pytest.approx(1 - prunable(small) / prunable(lm))
    assert keep.removed == pytest.approx(share, abs=0.02) and (share or keep.neurons == 80)


def test_a_configuration_that_cannot_be_loaded_again_is_never_made():
    """Llama's heads must divide the hidden size: 6 of 8 over 64 would be saved and never load."""
    lm = lm_of(tiny_llama(hidden_size=64, num_attention_heads=8))
    assert counts(lm, 0.25).heads == 8 and counts(lm, 0.4).heads == 4
    with pytest.raises(LabkitError, match="cannot hold 6 query heads"):
        shrink(lm, *drawn(lm, 2, 3, 40))


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_a_plain_model_for_loading_fusing_inflating_and_serving(tmp_path, tied):
    lm = lm_of(tiny_llama(dtype=F64, tie_word_embeddings=tied))
    small, ids = shrink(lm, *drawn(lm, 2, 2, 50)), ids_of(lm, 2, 21)
    wanted = logits(small, ids)
    again = load(str(save(tmp_path, small.model)), dtype=F64, device="cpu")
    assert torch.equal(logits(again, ids), wanted)

    shape = Shape("", 96, 3, 8, 4, 32, 176, tied=tied)
    big = inflate(small.model, inflated_config(small.model.config, shape), device=CPU, dtype=torch.float32)
    torch.testing.assert_close(logits(lm_of(big), ids), wanted.float(), rtol=1e-4, atol=1e-4)

    asked = [
        Request(prompt=tuple(ids_of(lm, n, seed=n).tolist()), max_tokens=6, ignore_eos=True)
        for n in (3, 17, 8)
    ]

    def served():
        with engine_for(small, blocks=40, block_size=4, rows=3, step_tokens=13) as engine:
            return [ticket.first.tokens for ticket in engine.run(asked)]

    alone = []
    for request in asked:
        tokens = list(request.prompt)
        for _ in range(6):
            tokens.append(int(logits(small, torch.tensor([tokens]))[0, -1].argmax()))
        alone.append(tokens[len(request.prompt) :])
    assert [list(tokens) for tokens in served()] == alone
    assert any(".layers." in name for name in fuse.apply(small).applied)
    assert [list(tokens) for tokens in served()] == alone


def test_units_that_make_no_model_are_refused():
    lm = lm_of(tiny_llama())
    heads, neurons = drawn(lm, 2, 2, 20)
    wrong = heads.clone()
    wrong[1] = torch.tensor([0, 1, 2, 3])  # three of the first KV head, one of the second
    fewer = heads.clone()
    fewer[1] = torch.tensor([0, 1, 3, 3])
    cases = {
        "KV heads would keep": (wrong, neurons),
        "exist once": (fewer, neurons),
        "Not all neurons": (heads, neurons + 75),
        "heads to keep are": (heads[:1], neurons),
        "neurons to keep are": (heads, neurons[:, :0]),
    }
    for message, given in cases.items():
        with pytest.raises(LabkitError, match=message):
            shrink(lm, *given)


class Packed(nn.Linear):
    """Stands for a linear layer that is no longer plain."""


def test_models_laid_out_otherwise_are_refused_with_the_reason():
    for name, reason in (("gpt2", "gated MLP|projections"), ("olmo2", "q_norm.* all heads")):
        with pytest.raises(LabkitError, match=reason):
            units(lm_of(build(name)))
    lm = lm_of(tiny_llama())
    lm.model.model.layers[1].mlp.up_proj = Packed(48, 80, bias=False)
    with pytest.raises(LabkitError, match="up_proj is a Packed"):
        units(lm)
    lm = lm_of(tiny_llama())
    fuse.apply(lm)
    for act in (lambda: units(lm), lambda: magnitude(lm, 0.5), lambda: recover(lm, ids_of(lm, 600))):
        with pytest.raises(LabkitError, match="fused kernels"):
            act()


# --- importance


def losses(lm, rows):
    rest = logits(lm, rows)[:, :-1]
    taken = torch.nn.functional.cross_entropy(rest.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    return taken.unflatten(0, (len(rows), -1)).mean(1)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "phi3 window"])
def test_taylor_scores_are_slopes_of_the_loss(name):
    lm, step = lm_of(build(name)), 4e-3  # norms compute in fp32, so no smaller
    tokens, width = ids_of(lm, 70, seed=3), units(lm).head_dim
    rows = tokens[:69].reshape(3, 23)
    found = importance(lm, tokens, length=23, batch=2)

    def slope(weight, columns):
        kept = weight[:, columns].clone()
        sides = []
        with torch.no_grad():
            for factor in (1 + step, 1 - step):
                weight[:, columns] = kept * factor
                sides.append(losses(lm, rows))
            weight[:, columns] = kept
        return ((sides[0] - sides[1]) / (2 * step)).abs().mean().item()

    for index in (0, 2):
        layer = lm.model.get_decoder().layers[index]
        out, down = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
        for head in (0, 2, 5):
            wanted = slope(out, slice(head * width, (head + 1) * width))
            assert found.heads[index, head].item() == pytest.approx(wanted, rel=1e-2, abs=1e-4)
        for group in (0, 1):
            wanted = slope(out, slice(group * 3 * width, (group + 1) * 3 * width))
            assert found.groups[index, group].item() == pytest.approx(wanted, rel=1e-2, abs=1e-4)
        for neuron in (0, 41, 63):
            wanted = slope(down, slice(neuron, neuron + 1))
            assert found.neurons[index, neuron].item() == pytest.approx(wanted, rel=1e-2, abs=1e-4)


def test_scoring_leaves_the_model_as_it_was():
    lm = lm_of(tiny_llama())
    weights = list(lm.model.parameters())
    weights[1].requires_grad_(False)
    weights[2].grad = torch.ones_like(weights[2])
    lm.model.train()
    before = copy.deepcopy(lm.model.state_dict())
    importance(lm, ids_of(lm, 100), length=20)
    with pytest.raises(LabkitError, match="do not make"):
        importance(lm, ids_of(lm, 100), length=20, sequences=6)
    assert all(torch.equal(each, before[key]) for key, each in lm.model.state_dict().items())
    assert [weight.requires_grad for weight in weights] == [number != 1 for number in range(len(weights))]
    assert lm.model.training and torch.equal(weights[2].grad, torch.ones_like(weights[2]))
    assert all(weight.grad is None for number, weight in enumerate(weights) if number != 2)
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in lm.model.modules())


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_magnitude_scores_are_norms_of_all_weights_of_a_unit(name):
    lm = lm_of(build(name))
    found = importance(lm, ids_of(lm, 4), "magnitude")
    heads, neurons = drawn(lm, 2, 3, 64)  # all of them
    base = sum(each.double().square().sum() for each in lm.model.parameters())
    keep = torch.stack(
        [row[row < 3] for row in heads]
    )  # without the second KV head and its three query heads
    small = shrink(lm, keep, neurons)
    gone = base - sum(each.double().square().sum() for each in small.model.parameters())
    assert found.groups[:, 1].double().square().sum().item() == pytest.approx(gone.item(), rel=1e-5)
    keep = torch.stack([row[row != 63] for row in neurons])
    gone = base - sum(each.double().square().sum() for each in shrink(lm, heads, keep).model.parameters())
    assert found.neurons[:, 63].double().square().sum().item() == pytest.approx(gone.item(), rel=1e-5)
    by_head = torch.stack(
        [
            each.self_attn.o_proj.weight[:, :8].double().square().sum()
            for each in lm.model.get_decoder().layers
        ]
    )
    assert (found.heads[:, 0].double().square() > by_head).all()


def test_random_scores_follow_their_seed():
    lm = lm_of(tiny_llama())
    one, same, other = (importance(lm, ids_of(lm, 4), "random", seed=seed) for seed in (5, 5, 6))
    assert torch.equal(one.neurons, same.neurons) and torch.equal(one.heads, same.heads)
    assert not torch.equal(one.neurons, other.neurons)
    with pytest.raises(LabkitError, match="no importance"):
        importance(lm, ids_of(lm, 4), "guess")


def test_what_nobody_reads_is_what_goes():
    lm = lm_of(tiny_llama(dtype=F64))
    idle_heads, idle_neurons = drawn(lm, 2, 1, 30, seed=4)
    everything = (torch.arange(6).expand(2, 6), torch.arange(80).expand(2, 80))
    kept = [
        torch.stack([row[~torch.isin(row, idle)] for row, idle in zip(all_, gone, strict=True)])
        for all_, gone in zip(everything, (idle_heads, idle_neurons), strict=True)
    ]
    idle = without(lm, *kept)
    scores = importance(idle, ids_of(lm, 200), length=25)
    heads, neurons = choose(scores, Counts(4, 2, 50, 0.0))
    assert torch.equal(heads, kept[0]) and torch.equal(neurons, kept[1])
    ids = ids_of(lm, 2, 15)
    small = shrink(idle, heads, neurons)
    torch.testing.assert_close(logits(small, ids), logits(idle, ids), rtol=1e-9, atol=1e-9)


def test_groups_are_chosen_before_the_heads_within_them():
    heads = torch.tensor([[9.0, 1, 2, 3, 4, 5]])
    scores = Importance(heads, torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[3.0, 1, 2]]), "taylor")
    chosen, neurons = choose(scores, Counts(2, 2, 2, 0.0))
    assert chosen.tolist() == [[3, 5]] and neurons.tolist() == [[0, 2]]
    with pytest.raises(LabkitError, match="More units"):
        choose(scores, Counts(6, 2, 2, 0.0))


def test_gradients_choose_labcoders_neurons_better_than_chance_and_weights_do():
    lm = load("labcoder", device="cpu")
    tokens = training_tokens(lm, 4096)
    held_out, everything = tokens[2048:].reshape(8, 256), torch.arange(8).expand(4, 8)
    found = {}
    for kind, seed in (("taylor", 0), ("magnitude", 0), ("random", 0), ("random", 1)):
        scores = importance(lm, tokens[:2048], kind, seed=seed)
        _, neurons = choose(scores, Counts(8, 2, 800, 0.0))
        found[kind, seed] = losses(shrink(lm, everything, neurons), held_out).mean().item()
    best = found.pop(("taylor", 0))
    assert best + 0.1 < min(found.values()), found


# --- single weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_the_share_is_exact_and_the_smallest_go(share, dtype):
    torch.manual_seed(1)
    weight = (torch.randn(37, 53) * 20).round().to(dtype)  # many equal sizes
    chosen = smallest(weight, share)
    assert chosen.sum() == round(share * weight.numel())
    if 0 < share < 1:
        assert weight[chosen].abs().max() <= weight[~chosen].abs().min()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_zeros_are_counted_and_cost_what_a_sparse_format_costs():
    lm = lm_of(tiny_llama())
    before = copy.deepcopy(lm.model.state_dict())
    pruned, found = magnitude(lm, 0.6)
    assert all(torch.equal(each, before[key]) for key, each in lm.model.state_dict().items())
    assert found.share == pytest.approx(0.6, abs=1e-3) and len(found.by_matrix) == 14
    state = pruned.model.state_dict()
    assert torch.equal(state["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    csr = dense = 0
    for name in found.by_matrix:
        weight, old = state[f"{name}.weight"], before[f"{name}.weight"]
        assert torch.equal(weight[weight != 0], old[weight != 0])
        sparse = weight.to_sparse_csr()
        csr += (
            sparse.values().numel() * 4 + sparse.col_indices().numel() * 4 + sparse.crow_indices().numel() * 4
        )
        dense += weight.numel() * 4
    assert (found.csr, found.dense) == (csr, dense) and found.bitmask < found.csr
    assert pruned.weight_bytes == lm.weight_bytes, "dense zeros save nothing"
    same, again = magnitude(lm, 0.6, in_place=True)
    assert same.model is lm.model and again == found == sparsity(lm)
    with pytest.raises(LabkitError, match="cannot be zero"):
        magnitude(lm, 1.2)


# --- repair and recovery


def test_refit_lets_a_twin_take_over():
    """A neuron and a head that another one repeats can go without loss, once the other's column is doubled."""
    lm = lm_of(tiny_llama(dtype=F64))
    with torch.no_grad():
        for layer in lm.model.model.layers:
            layer.mlp.gate_proj.weight[7] = layer.mlp.gate_proj.weight[60]
            layer.mlp.up_proj.weight[7] = layer.mlp.up_proj.weight[60] * 2
            for start in (0, 48):  # the first query head of each KV head is its third one
                layer.self_attn.q_proj.weight[start : start + 16] = layer.self_attn.q_proj.weight[
                    start + 32 : start + 48
                ]
    heads = torch.tensor([[1, 2, 4, 5]] * 2)
    neurons = torch.stack([torch.tensor([n for n in range(80) if n != 7])] * 2)
    small, before = shrink(lm, heads, neurons), copy.deepcopy(lm.model.state_dict())
    ids, tokens = ids_of(lm, 2, 30, seed=8), ids_of(lm, 2000, seed=9)
    assert (logits(small, ids) - logits(lm, ids)).abs().max() > 0.1
    refit(lm, small, tokens, length=50, ridge=1e-9)
    torch.testing.assert_close(logits(small, ids), logits(lm, ids), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(each, before[key]) for key, each in lm.model.state_dict().items())
    assert not any(each._forward_hooks for each in (*lm.model.modules(), *small.model.modules()))
    with pytest.raises(LabkitError, match="ridge"):
        refit(lm, small, tokens, ridge=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_refit_brings_a_cut_model_nearer(dtype, bias):
    lm = lm_of(tiny_llama(dtype=dtype, attention_bias=bias, mlp_bias=bias))
    small = shrink(lm, *drawn(lm, 2, 2, 40))
    ids, tokens = ids_of(lm, 4, 40, seed=8), ids_of(lm, 3000, seed=9)
    far = (logits(small, ids) - logits(lm, ids)).float().norm()
    refit(lm, small, tokens, length=50)
    assert (logits(small, ids) - logits(lm, ids)).float().norm() < 0.9 * far


@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_the_learning_rate_falls_from_the_first_to_the_last(schedule):
    rates = [learning_rate(step, 9, (1e-3, 1e-4), schedule) for step in range(9)]
    assert rates[0] == pytest.approx(1e-3) and rates[-1] == pytest.approx(1e-4)
    assert all(early > late for early, late in zip(rates, rates[1:], strict=False))
    risen = [learning_rate(step, 12, (1e-3, 1e-4), schedule, 3) for step in range(12)]
    assert risen == pytest.approx([2.5e-4, 5e-4, 7.5e-4, *rates])
    middle = {"cosine": 5.5e-4, "exponential": 1e-3 * 10**-0.5}[schedule]
    assert rates[4] == pytest.approx(middle) and learning_rate(0, 1, (1e-3, 1e-4), schedule) == pytest.approx(
        1e-3
    )


def pattern(n, seed=0):
    """Tokens that can be learnt: each is the one before plus 7."""
    return (torch.arange(n) * 7 + seed) % VOCAB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recovery_learns_and_leaves_no_trace(dtype):
    lm = lm_of(tiny_llama(dtype=dtype))
    weights = list(lm.model.parameters())
    weights[3].requires_grad_(False)
    lm.model.train()
    buffers = {name: (each.dtype, each.clone()) for name, each in lm.model.named_buffers()}
    state = torch.random.get_rng_state()
    settings = {"steps": 30, "batch": 4, "length": 16, "every": 10}
    done = recover(lm, pattern(3000), held_out=pattern(200, seed=3), **settings)
    assert [point[0] for point in done.held_out] == [0, 10, 20, 30] and len(done.steps) == 30
    assert (
        done.held_out[-1][1] < 0.85 * done.held_out[0][1] and done.steps[-1].loss < 0.85 * done.steps[0].loss
    )
    assert max(step.lr for step in done.steps) == pytest.approx(1e-3) == done.steps[7].lr and done.steps[
        -1
    ].lr == pytest.approx(1e-4)
    assert not lm.model.training and lm.model.lm_head.weight is lm.model.model.embed_tokens.weight
    assert all(each.dtype == dtype and each.grad is None for each in weights)
    assert [each.requires_grad for each in weights] == [number != 3 for number in range(len(weights))]
    for name, each in lm.model.named_buffers():
        assert each.dtype == buffers[name][0] and torch.equal(each, buffers[name][1])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_recovery_repeats_with_its_seed():
    found = []
    for seed in (1, 1, 2):
        lm = lm_of(tiny_llama())
        recover(lm, ids_of(lm, 900), steps=3, batch=2, length=12, seed=seed)
        found.append(lm.model.model.layers[1].mlp.up_proj.weight.detach().clone())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    lm = lm_of(tiny_llama())
    whole = copy.deepcopy(lm.model.state_dict())
    assert recover(lm, ids_of(lm, 900), steps=0).steps == ()
    assert all(torch.equal(each, whole[key]) for key, each in lm.model.state_dict().items())


def test_clipping_bounds_the_step_and_a_broken_model_is_given_back(monkeypatch):
    lm = lm_of(tiny_llama(dtype=torch.bfloat16))
    seen = []
    plain = torch.nn.utils.clip_grad_norm_

    def spy(weights, clip):
        before = plain(weights, clip)
        seen.append(torch.stack([each.grad.norm() for each in weights]).norm().item())
        return before

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    done = recover(lm, ids_of(lm, 900), steps=2, batch=2, length=12, clip=0.01)
    assert all(step.norm > 0.01 for step in done.steps) and max(seen) <= 0.0101
    with torch.no_grad():
        lm.model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(LabkitError, match="no longer finite"):
        recover(lm, ids_of(lm, 900), steps=2, batch=2, length=12)
    assert all(each.dtype == torch.bfloat16 and each.grad is None for each in lm.model.parameters())
    for settings in ({"lr": (1e-4, 1e-3)}, {"schedule": "linear"}, {"clip": 0}, {"steps": -1}):
        with pytest.raises(LabkitError, match="Cannot train"):
            recover(lm, ids_of(lm, 900), length=12, **settings)


# --- the loop and the study

TEXT = "import json\n\n\ndef first(values):\n    return [value for value in values if value][0]\n" * 40
SHORT = {"sequences": 8, "recovery": {"steps": 2, "batch": 2, "length": 16}}


def fewer_bytes(whole, small):
    return whole.weight_bytes / small.weight_bytes


def test_the_loop_stops_at_its_target():
    lm = lm_of(tiny_llama())
    before = copy.deepcopy(lm.model.state_dict())
    tokens = lm.encode(TEXT).flatten()
    done = until(lm, tokens, TEXT, target=1.2, floor=1e9, step=0.15, speed=fewer_bytes, **SHORT)
    assert done.stopped == "target" and [each.number for each in done.rounds] == list(range(len(done.rounds)))
    assert done.rounds[-1].speedup >= 1.2 > done.rounds[-2].speedup and len(done.rounds) > 2
    assert done.lm.weight_bytes == done.rounds[-1].bytes < lm.weight_bytes
    removed = [each.left.removed for each in done.rounds]
    assert removed == sorted(removed) and removed[0] == 0 and "pruned" in done.lm.name
    assert all(torch.equal(each, before[key]) for key, each in lm.model.state_dict().items())
    json.dumps([each.perplexity for each in done.rounds], allow_nan=False)


def test_the_loop_ends_whatever_happens():
    lm = lm_of(tiny_llama())
    tokens = lm.encode(TEXT).flatten()

    def slow(whole, small):
        return 1.0

    cut = {"recovery": {"steps": 0, "length": 16}, "sequences": 8}
    bad = until(lm, tokens, TEXT, floor=0.1, speed=slow, **cut)
    assert bad.stopped == "floor" and bad.lm is lm and len(bad.rounds) == 2
    some = until(lm, tokens, TEXT, floor=1e9, rounds=2, speed=slow, **cut)
    assert some.stopped == "rounds" and len(some.rounds) == 3 and some.lm is not lm
    least = until(lm, tokens, TEXT, floor=1e9, step=0.4, rounds=50, speed=slow, **cut)
    assert least.stopped == "small" and len(least.rounds) < 6
    with pytest.raises(LabkitError, match="No loop"):
        until(lm, tokens, TEXT, step=0)


def test_nothing_comes_back_in_a_later_round():
    """Half the heads go at once in this shape, and then the share alone would leave more neurons than there are."""
    lm = lm_of(tiny_llama(hidden_size=64, num_attention_heads=8, intermediate_size=144))
    shares = [counts(lm, share).neurons for share in (0.2, 0.3)]
    assert shares[0] < shares[1], "not the case that is meant"
    tokens, cut = lm.encode(TEXT).flatten(), {"recovery": {"steps": 0, "length": 16}, "sequences": 8}
    done = until(lm, tokens, TEXT, floor=1e9, step=0.1, rounds=4, speed=fewer_bytes, target=1e9, **cut)
    for one, next_ in zip(done.rounds, done.rounds[1:], strict=False):
        assert next_.left.heads <= one.left.heads and next_.left.neurons <= one.left.neurons
        assert next_.left.removed > one.left.removed
    assert done.rounds[-1].left.heads == 4


def test_the_loop_measures_decode_steps():
    lm = lm_of(tiny_llama())
    tokens = lm.encode(TEXT).flatten()
    done = until(lm, tokens, TEXT, target=1e-6, floor=1e9, step=0.3, **SHORT)
    assert done.stopped == "target" and done.rounds[1].speedup > 0


def test_the_study_has_every_run_and_is_plain():
    lm = lm_of(tiny_llama())
    tokens = lm.encode(TEXT).flatten()
    settings = {"steps": 3, "batch": 2, "length": 16, "sequences": 8, "held_out": 2, "repeats": 2}
    found = study(lm, tokens, text=TEXT, seeds=(0, 4), shares=(0.2, 0.9), **settings)
    again = json.loads(json.dumps(found, allow_nan=False))
    kinds = [(run["kind"], run["seed"]) for run in again["runs"]]
    assert kinds == [("taylor", 0), ("taylor", 4), ("magnitude", 0), ("random", 0), ("random", 4)]
    assert len({run["bytes"] for run in again["runs"]}) == 1 and again["runs"][0]["bytes"] < lm.weight_bytes
    for run in again["runs"]:
        assert len(run["steps"]) == 3 and [point[0] for point in run["held_out"]] == [0, 1, 2, 3]
        for stage in ("cut", "refit", "recovered"):
            moved = run[stage]["bits_per_byte"] - again["base"]["bits_per_byte"]
            assert run[stage]["change"] == pytest.approx(moved) and run[stage]["low"] <= run[stage]["high"]
    bits = {(run["kind"], run["seed"]): run["cut"]["bits_per_byte"] for run in again["runs"]}
    margins = [each for each in again["margins"] if each["stage"] == "cut"]
    assert len(margins) == 3 and len(again["margins"]) == 9
    for each in margins:
        more = bits[each["kind"], each["seed"]] - bits["taylor", each["seed"]]
        assert each["mean"] == pytest.approx(more) and each["low"] <= each["high"]
    spread = again["summary"]["random"]["recovered"]
    values = [run["recovered"]["perplexity"] for run in again["runs"] if run["kind"] == "random"]
    assert (spread["low"], spread["high"]) == (min(values), max(values))
    assert [each["share"] for each in again["unstructured"]] == pytest.approx([0.2, 0.9], abs=1e-2)
    assert set(again["speed"]) == {"whole", "pruned", "zeros"} and again["units"]["pruned"]["neurons"] < 80
    with pytest.raises(LabkitError, match="too few"):
        study(lm, tokens[:100], text=TEXT, **settings)
