"""Distillation: losses are what their formulas say, only the student learns, and a seed makes one student."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_llama, tiny_tokenizer
from torch import nn

from labkit import results
from labkit.batch import bench_distil
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.compress.distil import (
    SHAPES,
    Settings,
    cast,
    distil,
    easiest_first,
    losses,
    parameters,
    share,
    student,
    temperatures,
)
from labkit.compress.distil.study import BASE, VARIANTS, ablation
from labkit.course.plots import distil as plots
from labkit.errors import LabkitError
from labkit.models import LM, load
from labkit.models.packed_checkpoint import save

CPU = torch.device("cpu")
F64 = torch.float64
SMALL = {"layers": 2, "hidden": 24, "heads": 3, "kv_heads": 1, "neurons": 20}
EVERYTHING = {"hidden": 0.7, "attention": 0.4, "labels": 0.3, "spread": 0.5, "curriculum": 0.5}
QUICK = Settings(steps=4, batch=3, length=17, every=2, held_out=4, **EVERYTHING)


def lm_of(model, name="tiny"):
    return LM(model, tiny_tokenizer(), name, CPU, model.dtype)


def drawn(*shape, seed=0, scale=3.0):
    return scale * torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def text_of(lm, count=900, seed=0):
    """Words of a small vocabulary: something to learn."""
    words = torch.randint(lm.config.vocab_size, (7, 5), generator=torch.Generator().manual_seed(seed))
    order = torch.randint(7, (count // 5,), generator=torch.Generator().manual_seed(seed + 1))
    return words[order].flatten()


@pytest.fixture(scope="module")
def teacher():
    return lm_of(tiny_llama(num_hidden_layers=4), "teacher")


@pytest.fixture
def small(teacher):
    return student(teacher, **SMALL, start="random")


def weights_of(lm):
    return {name: weight.clone() for name, weight in lm.model.state_dict().items()}


def same(ours, theirs):
    return all(torch.equal(each, theirs[name]) for name, each in ours.items())


# --- losses


def softened(row, temperature):
    powers = [math.exp((value - max(row)) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.7])
def test_outputs_is_the_softened_divergence_times_the_square_of_the_temperature(temperature):
    ours, theirs = drawn(2, 5, 11), drawn(2, 5, 11, seed=1)
    each = [
        divergence(softened(b.tolist(), temperature), softened(a.tolist(), temperature))
        for a, b in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True)
    ]
    wanted = temperature**2 * sum(each) / len(each)
    assert losses.outputs(ours, theirs, temperature).item() == pytest.approx(wanted, rel=1e-12)


def test_a_temperature_for_each_token_is_squared_for_each_token():
    ours, theirs = drawn(2, 3, 7), drawn(2, 3, 7, seed=1)
    heat = torch.tensor([[0.5, 1.0, 2.0], [3.0, 1.5, 0.7]], dtype=F64)
    alone = [losses.outputs(ours[i, j], theirs[i, j], heat[i, j].item()) for i in range(2) for j in range(3)]
    torch.testing.assert_close(losses.outputs(ours, theirs, heat), torch.stack(alone).mean())


def test_a_softer_target_keeps_the_size_of_its_gradient():
    ours, theirs = drawn(64, 50, scale=0.3).requires_grad_(), drawn(64, 50, seed=1, scale=0.3)
    sizes = [
        torch.autograd.grad(losses.outputs(ours, theirs, heat), ours)[0].norm().item() for heat in (1.0, 20.0)
    ]
    assert 0.5 < sizes[1] / sizes[0] < 2


def test_a_token_that_cannot_come_adds_nothing_and_no_gradient_is_nan():
    ours, theirs = drawn(4, 9), drawn(4, 9, seed=1)
    theirs[:, 2] = -torch.inf
    for dead in (False, True):
        given = ours.clone()
        if dead:
            given[:, 2] = -torch.inf
        given.requires_grad_()
        loss = losses.outputs(given, theirs, 2.0)
        wanted = [
            divergence(softened(b, 2.0), softened(a, 2.0))
            for a, b in zip(given.tolist(), theirs.tolist(), strict=True)
        ]
        assert loss.item() == pytest.approx(4 * sum(wanted) / 4, rel=1e-12)
        assert torch.autograd.grad(loss, given)[0].isfinite().all()
    ours[:, 0] = -torch.inf  # here the teacher is not
    assert losses.outputs(ours, theirs) == torch.inf


def test_hidden_states_are_compared_by_direction_through_the_map():
    ours, theirs = drawn(2, 5, 6), drawn(2, 5, 8, seed=1)
    linear = nn.Linear(6, 8, bias=False, dtype=F64)
    total = 0.0
    for a, b in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True):
        mapped = linear.weight.detach() @ a
        total += sum((x / mapped.norm() - y / b.norm()) ** 2 for x, y in zip(mapped, b, strict=True)).item()
    assert losses.hidden(ours, theirs, linear).item() == pytest.approx(total / 10, rel=1e-12)
    assert losses.hidden(theirs, -5 * theirs).item() == pytest.approx(4)


def maps_of(batch, heads, tokens, seed=0):
    """Causal attention maps: exact zeros above the diagonal."""
    scores = drawn(batch, heads, tokens, tokens, seed=seed)
    above = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(above, -torch.inf).softmax(-1)


def test_attention_maps_are_held_against_the_mean_of_a_group_of_heads():
    ours, theirs = maps_of(2, 2, 5), maps_of(2, 6, 5, seed=1)
    total = 0.0
    for row in range(2):
        for head in range(2):
            for query in range(5):
                group = theirs[row, 3 * head : 3 * head + 3, query].sum(0) / 3
                total += divergence(group.tolist(), ours[row, head, query].tolist())
    assert losses.attention(ours, theirs).item() == pytest.approx(total / 20, rel=1e-12)


@pytest.mark.parametrize("kind", ["outputs", "labels", "hidden", "attention"])
def test_what_is_masked_does_not_count_even_if_it_is_nan(kind):
    lengths = (5, 2, 7)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    if kind == "attention":
        ours, theirs, fn = maps_of(3, 2, 7), maps_of(3, 4, 7, seed=1), losses.attention
    elif kind == "labels":
        ours, theirs, fn = drawn(3, 7, 9), torch.arange(21).view(3, 7) % 9, losses.labels
    else:
        ours, theirs, fn = drawn(3, 7, 9), drawn(3, 7, 9, seed=1), getattr(losses, kind)
    rows = zip(ours, theirs, lengths, strict=True)
    if kind == "attention":
        alone = [fn(a[None, :, :n, :n], b[None, :, :n, :n]) for a, b, n in rows]
    else:
        alone = [fn(a[:n], b[:n]) for a, b, n in rows]
    wanted = sum(n * each for n, each in zip(lengths, alone, strict=True)) / sum(lengths)
    hole = ~mask if kind != "attention" else ~mask[:, None].expand(3, 2, 7)
    ours[hole] = torch.nan
    torch.testing.assert_close(fn(ours, theirs, mask=mask), wanted)


def test_losses_refuse_what_does_not_fit():
    for call in (
        lambda: losses.outputs(drawn(3, 9), drawn(3, 8)),
        lambda: losses.outputs(drawn(3, 9), drawn(3, 9), 0.0),
        lambda: losses.outputs(drawn(3, 9), drawn(3, 9), mask=torch.zeros(3, dtype=torch.bool)),
        lambda: losses.outputs(drawn(3, 9), drawn(3, 9), mask=torch.ones(2, dtype=torch.bool)),
        lambda: losses.labels(drawn(3, 9), torch.zeros(4, dtype=torch.long)),
        lambda: losses.hidden(drawn(3, 9), drawn(3, 8)),
        lambda: losses.attention(maps_of(1, 4, 3), maps_of(1, 6, 3)),
        lambda: losses.attention(maps_of(1, 2, 3), maps_of(1, 4, 4)),
        lambda: losses.matching(3, 2),
        lambda: losses.matching(0, 2),
    ):
        with pytest.raises(LabkitError):
            call()


def test_layers_match_evenly_and_the_last_the_last():
    assert losses.matching(2, 4) == (1, 3) and losses.matching(1, 4) == (3,)
    assert losses.matching(3, 12) == (3, 7, 11) and losses.matching(4, 4) == (0, 1, 2, 3)
    assert losses.matching(3, 4) == (0, 1, 3)


# --- difficulty


def test_temperatures_rise_with_difficulty_around_the_same_mean():
    heat = temperatures(torch.tensor([[5.0, 0.1], [2.0, 90.0], [0.3, 7.0]], dtype=F64), 2.0, 0.5)
    wanted = torch.tensor([[2.2, 1.0], [1.8, 3.0], [1.4, 2.6]], dtype=F64)
    torch.testing.assert_close(heat, wanted)
    assert torch.equal(temperatures(drawn(4, 3), 1.5, 0.0), torch.full((4, 3), 1.5, dtype=F64))
    assert temperatures(torch.tensor([3.0]), 1.5, 0.4).tolist() == [1.5]


def test_a_curriculum_opens_the_text_little_by_little():
    shares = [share(step, 100, 0.2) for step in range(100)]
    assert shares[0] == 0.2 and shares == sorted(shares) and shares[25] == pytest.approx(0.6)
    assert set(shares[50:]) == {1.0} and share(0, 9, 1.0) == 1.0


def test_easy_is_what_the_teacher_finds_easy_and_comes_first(teacher, small, monkeypatch):
    rows = text_of(teacher, 900).view(-1, 18)
    order = easiest_first(teacher, rows, 7)
    with torch.no_grad():
        found = [losses.labels(teacher.model(row[None]).logits[0, :-1], row[1:]) for row in rows[order]]
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert all(a <= b + 1e-5 for a, b in zip(found, found[1:], strict=False))

    seen = []
    forward = small.model.forward
    monkeypatch.setattr(small.model, "forward", lambda ids, **more: seen.append(ids) or forward(ids, **more))
    plan = Settings(steps=8, batch=6, length=18, held_out=0, curriculum=0.1)
    distil(teacher, small, rows.flatten(), plan)
    places = {tuple(row.tolist()): place for place, row in enumerate(rows[order])}
    read = [[places[tuple(row.tolist())] for row in batch] for batch in seen]
    for step, batch in enumerate(read):
        assert max(batch) <= share(step, 8, 0.1) * len(rows)
    assert max(read[0]) < 5 < max(read[-1])


# --- students


@pytest.mark.parametrize("start", ["teacher", "random"])
def test_a_student_is_saved_loaded_and_served(teacher, start, tmp_path):
    small = student(teacher, **SMALL, start=start)
    config = small.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (2, 24, 20)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (3, 1, 16)
    assert 2 * parameters(small.model) < parameters(teacher.model)
    distil(teacher, small, text_of(teacher), QUICK)
    loaded = load(str(save(small, tmp_path / "student")), device="cpu")
    ids = text_of(teacher, 60).view(4, 15)
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, small.model(ids).logits)
        wanted, prompt = [], list(range(3, 12))
        for _ in range(6):
            wanted.append(small.model(torch.tensor([prompt + wanted])).logits[0, -1].argmax().item())
    with engine_for(loaded, blocks=16) as engine:
        ticket = engine.run([Request(prompt=tuple(prompt), max_tokens=6, ignore_eos=True)])[0]
    assert list(ticket.first.tokens) == wanted


def test_a_student_cut_as_wide_as_its_teacher_has_its_layers_unchanged(teacher):
    before = weights_of(teacher)
    kept = {"hidden": 48, "heads": 6, "kv_heads": 2, "neurons": 80}
    small = student(teacher, layers=1, **kept)
    for name, weight in small.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert same(weights_of(teacher), before)
    assert not {each.data_ptr() for each in small.model.parameters()} & {
        each.data_ptr() for each in teacher.model.parameters()
    }


@pytest.mark.parametrize("read", [False, True])
def test_a_residual_stream_that_is_narrow_inside_is_cut_without_loss(read):
    lm = lm_of(tiny_llama(dtype=F64))
    inside = torch.linalg.qr(drawn(48, 18))[0]
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.copy_(inside @ inside.T @ weight)
            elif "embed" in name:
                weight.copy_(weight @ inside @ inside.T)
            elif name == "model.norm.weight":
                weight.fill_(0.8)  # another one for each channel cannot be turned
    shape = {"layers": 2, "hidden": 18, "heads": 6, "kv_heads": 2, "neurons": 80}
    small = student(lm, **shape, tokens=text_of(lm, 2100) if read else None)
    ids = text_of(lm, 60).view(4, 15)
    with torch.no_grad():
        torch.testing.assert_close(
            small.model(ids).logits, lm.model(ids).logits, rtol=1e-4, atol=1e-4
        )  # norms compute in fp32


def test_importance_by_gradients_chooses_otherwise_than_by_size(teacher):
    by_size = student(teacher, **SMALL)
    by_gradient = student(teacher, **SMALL, tokens=text_of(teacher, 2100))
    assert not same(weights_of(by_size), weights_of(by_gradient))


def test_in_16_bits_positions_stay_exact(teacher):
    lm = LM(copy.deepcopy(teacher.model), teacher.tokenizer, "b", CPU, torch.bfloat16)
    for weight in lm.model.parameters():
        weight.data = weight.data.bfloat16()
    for start in ("teacher", "random"):
        small = student(lm, **SMALL, start=start)
        distil(lm, small, text_of(lm), QUICK)
        assert {weight.dtype for weight in small.model.parameters()} == {torch.bfloat16}
        ours, theirs = (each.model.model.rotary_emb.inv_freq for each in (small, teacher))
        assert torch.equal(ours, theirs)


def test_random_students_depend_on_their_seed_alone(teacher):
    state = torch.get_rng_state()
    first, again, other = (weights_of(student(teacher, **SMALL, start="random", seed=s)) for s in (1, 1, 2))
    assert same(first, again) and not same(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_students_that_cannot_be_are_refused(teacher):
    for wrong in (
        {"layers": 5}, {"layers": 0}, {"hidden": 25}, {"heads": 4, "kv_heads": 1}, {"neurons": 81},
        {"layers": 4, "hidden": 48, "heads": 6, "kv_heads": 2, "neurons": 80}, {"start": "zeros"},
    ):  # fmt: skip
        with pytest.raises(LabkitError):
            student(teacher, **{**SMALL, **wrong})


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_fit_labcoder(shape):
    lm = load("labcoder", device="cpu")
    small = student(lm, **SHAPES[shape], start="random")
    assert 2 * parameters(small.model) < parameters(lm.model)
    if shape == "narrow":
        assert 2 * parameters(small.model) <= bench_distil.MOST_BYTES


# --- training


def test_only_the_student_learns_and_everything_is_put_back(teacher, small):
    teacher.model.requires_grad_(True)
    before, mine = weights_of(teacher), weights_of(small)
    flags = [weight.requires_grad for weight in small.model.parameters()]
    history = distil(teacher, small, text_of(teacher), QUICK)
    assert same(weights_of(teacher), before) and not same(weights_of(small), mine)
    assert all(weight.grad is None for lm in (teacher, small) for weight in lm.model.parameters())
    assert [weight.requires_grad for weight in small.model.parameters()] == flags
    assert teacher.model.config._attn_implementation == small.model.config._attn_implementation == "sdpa"
    assert [step.step for step in history.steps] == [0, 1, 2, 3]
    assert set(history.steps[0].losses) == {"outputs", "hidden", "attention", "labels"}
    assert [point.step for point in history.held_out] == [0, 2, 4]
    assert history.tokens == history.held_out[-1].tokens == 4 * 3 * 17 and history.seconds > 0


def test_a_student_equal_to_its_teacher_has_nothing_to_lose():
    lm = lm_of(tiny_llama(dtype=F64))
    twin = lm_of(copy.deepcopy(lm.model))
    plan = replace(QUICK, labels=0.0, steps=1)
    history = distil(lm, twin, text_of(lm), plan)
    assert all(abs(loss) < 1e-12 for loss in history.steps[0].losses.values())
    assert len(history.steps[0].losses) == 3 and abs(history.held_out[0].kl) < 1e-12


def test_the_first_step_has_the_losses_of_its_formulas(teacher, small):
    ids = text_of(teacher, 900)[:17]  # one sequence: whatever is drawn, it is this one
    with torch.no_grad():
        ours, theirs = (lm.model(ids[None]).logits[:, :-1] for lm in (small, teacher))
    targets = ids[None, 1:]
    heat = temperatures(losses.token_losses(theirs, targets), 3.0, 0.4)
    plan = Settings(steps=1, batch=1, length=17, held_out=0, temperature=3.0, spread=0.4, labels=1.0)
    found = distil(teacher, small, ids, plan).steps[0].losses
    assert found["outputs"] == pytest.approx(losses.outputs(ours, theirs, heat).item(), rel=1e-4)
    assert found["labels"] == pytest.approx(losses.labels(ours, targets).item(), rel=1e-4)


def test_the_same_seed_gives_the_same_student_and_another_another(teacher):
    text, found = text_of(teacher), []
    for seed in (0, 0, 1):
        torch.rand(3)  # the caller's random state is of no account
        small = student(teacher, **SMALL, start="random")
        history = distil(teacher, small, text, replace(QUICK, seed=seed))
        found.append((weights_of(small), history.steps, history.held_out))
    assert same(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]
    assert not same(found[0][0], found[2][0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_same_seed_gives_the_same_student_bit_for_bit(teacher):
    model = copy.deepcopy(teacher.model).cuda()
    cast(model, torch.bfloat16)
    lm, found = LM(model, teacher.tokenizer, "gpu", torch.device("cuda:0"), torch.bfloat16), []
    for _ in range(2):
        small = student(lm, **SMALL, start="random")
        history = distil(lm, small, text_of(lm, 9000), replace(QUICK, steps=20, batch=64))
        found.append((weights_of(small), history.steps, history.held_out))
    assert same(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]


def test_without_a_teacher_in_the_loss_none_is_asked(teacher, small, monkeypatch):
    def asked(*_, **__):
        raise RuntimeError("asked")

    monkeypatch.setattr(teacher.model, "forward", asked)
    plan = Settings(steps=3, batch=3, length=17, held_out=0, outputs=0.0, labels=1.0)
    history = distil(teacher, small, text_of(teacher), plan)
    assert set(history.steps[0].losses) == {"labels"}


def test_a_student_comes_nearer_to_its_teacher(teacher, small):
    seen = []
    plan = Settings(steps=60, batch=8, length=17, lr=(1e-2, 1e-3), every=30, temperature=1.0)
    history = distil(
        teacher, small, text_of(teacher, 1800), plan, progress=lambda done, point: seen.append((done, point))
    )
    assert history.held_out[-1].kl < 0.8 * history.held_out[0].kl
    assert [done for done, _ in seen] == list(range(61)) and seen[-1][1] == history.held_out[-1]


def test_held_out_text_is_measured_as_it_is(teacher, small):
    text = text_of(teacher)
    history = distil(teacher, small, text, replace(QUICK, steps=0))
    rows = text[: len(text) // 17 * 17].view(-1, 17)[-4:]
    with torch.no_grad():
        ours, theirs = (lm.model(rows).logits[:, :-1] for lm in (small, teacher))
    size = len(teacher.decode(rows.flatten()).encode()) / rows.numel()
    point = history.held_out[0]
    nats = losses.labels(ours, rows[:, 1:]).item()
    assert point.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert point.kl == pytest.approx(losses.outputs(ours, theirs).item(), rel=1e-4)
    floor = losses.labels(theirs, rows[:, 1:]).item() / math.log(2) / size
    assert history.floor == pytest.approx(floor, rel=1e-5)
    assert history.steps == () and history.tokens == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1}, {"batch": 0}, {"every": 0}, {"clip": 0.0}, {"lr": (1e-4, 1e-3)}, {"hidden": -1.0},
        {"outputs": 0.0, "hidden": 0.0, "attention": 0.0, "labels": 0.0}, {"temperature": 0.0}, {"spread": 1.0},
        {"curriculum": 0.0}, {"length": 1}, {"length": 4000}, {"held_out": 60}, {"lr": (1e30, 1e29)},
    ],
    ids=str,
)  # fmt: skip
def test_training_that_makes_no_sense_is_refused_and_leaves_the_models_usable(teacher, small, wrong):
    with pytest.raises(LabkitError):
        distil(teacher, small, text_of(teacher), replace(QUICK, **wrong))
    assert teacher.model.config._attn_implementation == small.model.config._attn_implementation == "sdpa"
    assert all(weight.grad is None for weight in small.model.parameters())


def test_models_that_do_not_match_are_refused(teacher, small):
    other = lm_of(tiny_llama(vocab_size=400, num_hidden_layers=4))
    deeper = lm_of(tiny_llama(num_hidden_layers=5))
    for pair in ((other, small), (teacher, teacher), (teacher, deeper)):
        with pytest.raises(LabkitError):
            distil(*pair, text_of(teacher), QUICK)


# --- the study


@pytest.fixture(scope="module")
def studied(teacher):
    words = "def spoon(soup):\n    return [soup] * 3\n" * 70
    plan = Settings(steps=3, batch=3, length=17, every=2, held_out=4)
    said = []
    found = ablation(teacher, text_of(teacher, 2100), words, plan, shape=SMALL, seeds=(0, 1), say=said.append)
    return json.loads(json.dumps(results.to_plain(found), allow_nan=False)), said


def test_a_study_has_every_variant_of_every_seed_at_equal_budget(studied):
    found, said = studied
    assert [(run["variant"], run["seed"]) for run in found["runs"]] == [
        (n, s) for s in (0, 1) for n in VARIANTS
    ]
    assert {run["tokens"] for run in found["runs"]} == {3 * 3 * 17} and found["settings"]["steps"] == 3
    assert all([point["step"] for point in run["curve"]] == [0, 2, 3] for run in found["runs"])
    assert len(said) == len(found["runs"])
    assert len({run["bits_per_byte"] for run in found["runs"]}) == len(found["runs"]), (
        "a variant changes nothing"
    )


def test_a_study_compares_with_outputs_alone_seed_by_seed(studied):
    found = studied[0]
    assert set(found["margins"]) == set(VARIANTS) - {BASE}
    runs = {(run["variant"], run["seed"]): run["bits_per_byte"] for run in found["runs"]}
    for name, margin in found["margins"].items():
        wanted = [runs[name, seed] - runs[BASE, seed] for seed in (0, 1)]
        assert margin["seeds"] == pytest.approx(wanted, abs=1e-9)
        assert margin["mean"] == pytest.approx(sum(wanted) / 2, abs=1e-9)
        assert margin["low"] <= margin["mean"] <= margin["high"]
    for name, one in found["summary"].items():
        mine = [runs[name, seed] for seed in (0, 1)]
        assert one["bits_per_byte"] == pytest.approx(
            {"mean": sum(mine) / 2, "low": min(mine), "high": max(mine)}
        )
    last = {name: one["held_out"]["mean"] for name, one in found["summary"].items()}
    assert found["best"] == min(last, key=last.__getitem__)


def test_seconds_lower_the_steps(teacher):
    words = "def spoon(soup):\n    return [soup] * 3\n" * 70
    plan = Settings(steps=3, batch=3, length=17, every=2, held_out=4)
    found = ablation(
        teacher,
        text_of(teacher, 2100),
        words,
        plan,
        shape=SMALL,
        variants={BASE: {}},
        seeds=(0,),
        seconds=1e-9,
    )
    assert found["settings"]["steps"] == 1
    for wrong in ({"seeds": ()}, {"variants": {"all": {}}}):
        with pytest.raises(LabkitError):
            ablation(teacher, text_of(teacher), words, plan, shape=SMALL, **wrong)


@pytest.mark.slow
def test_the_benchmark_measures_every_part_and_keeps_a_student(teacher, tmp_path, monkeypatch):
    shapes = {"narrow": SMALL, "deep": {**SMALL, "layers": 3}}
    text = "def spoon(soup):\n    return [soup] * 3\n" * 70
    said, save_student = [], bench_distil._saved
    for name, value in {
        "SHAPES": shapes, "evaluation_text": lambda: text, "print": said.append, "say": lambda line: None,
        "PARTS": {**bench_distil.PARTS, "saved": lambda kitchen: save_student(kitchen, tmp_path / "student")},
    }.items():  # fmt: skip
        monkeypatch.setattr(bench_distil, name, value, raising=False)
    monkeypatch.setattr(bench_distil.results, "load", lambda *_: None)
    settings = Settings(steps=2, batch=1, length=16, held_out=2)
    plan = bench_distil.Plan(4000, settings, seeds=(0,), seconds=0.1, longer=0.1, rows=(1, 2), rounds=1)
    found = bench_distil.run(str(save(teacher, tmp_path / "teacher")), "cpu", plan)
    figures = json.loads(json.dumps(results.to_plain(found), allow_nan=False))
    assert all("unavailable" not in figures[part] for part in bench_distil.PARTS), figures
    last = json.loads(said[-1])
    assert set(last["share"]) == set(last["speedup"]) == set(shapes)
    speed = figures["speed"]
    for rows in ("1", "2"):
        assert speed["speedup"]["deep"][rows] == pytest.approx(
            speed["teacher"]["median"][rows] / speed["deep"]["median"][rows]
        )
    kept, shape = load(str(tmp_path / "student"), device="cpu"), figures["saved"]["shape"]
    assert kept.config.num_hidden_layers == shapes[shape]["layers"]
    assert (
        2 * figures["students"][shape]["parameters"] <= figures["saved"]["bytes"] <= bench_distil.MOST_BYTES
    )
    ends = {name: one["curve"][-1]["bits_per_byte"] for name, one in figures["students"].items()}
    assert ends[shape] == min(ends.values())


# --- pictures


def test_pictures_show_every_variant_and_the_teacher(studied):
    found = studied[0]
    (axes,) = plots.learning(found).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(VARIANTS) < set(lines) and len(axes.collections) == len(VARIANTS)
    mine = [run["curve"] for run in found["runs"] if run["variant"] == "all"]
    means = [sum(point["bits_per_byte"] for point in points) / 2 for points in zip(*mine, strict=True)]
    assert list(lines["all"].get_ydata()) == pytest.approx(means)
    assert any(set(line.get_ydata()) == {found["runs"][0]["floor"]} for line in axes.get_lines())

    (axes,) = plots.margins(found, BASE).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found["margins"])
    drawn = [line.get_xdata() for line in axes.get_lines()]
    for margin in found["margins"].values():
        for wanted in ([margin["low"], margin["high"]], [margin["mean"]], margin["seeds"]):
            assert any(len(xs) == len(wanted) and list(xs) == pytest.approx(wanted) for xs in drawn)
