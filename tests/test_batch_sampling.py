"""A row's tokens depend on its own request alone, and choosing them costs what it must and no more."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import RepetitionPenaltyLogitsProcessor

from labkit.batch import sampler
from labkit.batch.sampler import BatchSampler
from labkit.batch.sampling import Sampling
from labkit.errors import LabkitError
from labkit.kernels import draws

VOCAB = 24


def logits_of(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


MIXED = [
    Sampling(),
    Sampling(temperature=0.9),
    Sampling(temperature=1.2, top_k=7),
    Sampling(temperature=1.2, top_p=0.8, repetition_penalty=1.3),
    Sampling(repetition_penalty=1.5, frequency_penalty=0.4),
    Sampling(temperature=1.1, min_p=0.1, presence_penalty=0.8, frequency_penalty=-0.3),
    Sampling(temperature=1.5, top_k=12, top_p=0.9, min_p=0.02, repetition_penalty=0.8, logprobs=2),
    Sampling(temperature=1e-300),
]
PROMPTS = [[(3 * row + step) % VOCAB for step in range(row + 1)] for row in range(len(MIXED))]
STEPS = 25


def model(row: int, step: int) -> torch.Tensor:
    """The logits that request `row` sees at `step`: they stand for a model with exact arithmetic."""
    return logits_of(1, seed=1000 * row + step)[0]


def alone(row: int, dtype: torch.dtype = torch.float32) -> list[int]:
    state, tokens = BatchSampler(1, VOCAB), []
    state.set(0, MIXED[row], 70 + row, PROMPTS[row])
    for step in range(STEPS):
        found = state.sample(model(row, step)[None].to(dtype), [0], torch.tensor([step])).tokens
        state.observe([0], found)
        tokens += found.tolist()
    return tokens


@pytest.fixture(scope="module")
def solo() -> list[list[int]]:
    return [alone(row) for row in range(len(MIXED))]


@pytest.mark.parametrize("piece", [1 << 24, 3 * VOCAB])
def test_a_request_draws_the_same_in_any_company(solo, monkeypatch, piece):
    """Random batches, orders and slots; requests are preempted at any time and resume in another slot."""
    monkeypatch.setattr(sampler, "PIECE", piece)
    rng = random.Random(piece)
    state, held = BatchSampler(12, VOCAB), {}
    done: list[list[int]] = [[] for _ in MIXED]
    while any(len(tokens) < STEPS for tokens in done):
        for row in range(len(MIXED)):
            if row in held and rng.random() < 0.15:
                state.clear(held.pop(row))
            elif row not in held:
                held[row] = rng.choice([slot for slot in range(12) if slot not in held.values()])
                state.set(held[row], MIXED[row], 70 + row, PROMPTS[row], done[row])
        batch = [row for row in held if len(done[row]) < STEPS and rng.random() < 0.7]
        rng.shuffle(batch)
        if not batch:
            continue
        logits = torch.stack([model(row, len(done[row])) for row in batch])
        slots, index = [held[row] for row in batch], torch.tensor([len(done[row]) for row in batch])
        found = state.sample(logits, slots, index)
        state.observe(slots, found.tokens)
        for row, token in zip(batch, found.tokens.tolist(), strict=True):
            done[row].append(token)
    assert done == solo
    assert len({tuple(tokens) for tokens in done}) == len(MIXED)


def test_the_dtype_of_equal_logits_does_not_matter():
    logits = logits_of(len(MIXED), 2000).bfloat16()  # many equal ones
    state, slots = BatchSampler(len(MIXED), 2000), range(len(MIXED))
    for slot in slots:
        state.set(slot, MIXED[slot], slot, PROMPTS[slot])
    index = torch.arange(len(MIXED))
    found = [state.sample(logits.to(dtype), slots, index).tokens
             for dtype in (torch.bfloat16, torch.float32, torch.float64)]  # fmt: skip
    assert found[0].equal(found[1]) and found[0].equal(found[2])


def test_logits_are_left_as_they_are():
    for dtype in (torch.float32, torch.float64):
        logits = logits_of(len(MIXED)).to(dtype)
        before, state = logits.clone(), BatchSampler(len(MIXED), VOCAB)
        for slot, sampling in enumerate(MIXED):
            state.set(slot, sampling, slot, PROMPTS[slot])
        state.sample(logits, range(len(MIXED)), torch.zeros(len(MIXED), dtype=torch.long), check=True)
        assert logits.equal(before)


def penalised_slowly(
    logits: list[float], prompt: list[int], output: list[int], sampling: Sampling
) -> list[float]:
    """Penalties token by token, from their definitions."""
    found = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        count = output.count(token)
        found.append(logit - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0))
    return found


def score(state: BatchSampler, slot: int, logits: torch.Tensor) -> torch.Tensor:
    """The penalised logits [vocab], as the sampler's own history and numbers make them."""
    penalties = state._table[slot : slot + 1].view(torch.float64)[:, 4:7].split(1, dim=1)
    history = state._prompt[slot : slot + 1], state._output[slot : slot + 1]
    return draws.penalised(logits.double()[None], *history, *penalties)[0]


ids = st.lists(st.integers(0, VOCAB - 1), max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    ids, ids, st.integers(0, 30), st.floats(0.3, 3), st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 999)
)
def test_penalties_follow_their_definitions(prompt, output, known, repetition, presence, frequency, seed):
    sampling = Sampling(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    if not sampling.needs_history:
        return
    state, logits = BatchSampler(3, VOCAB), logits_of(1, seed=seed)[0]
    state.set(
        2, Sampling(repetition_penalty=2.0), 0, list(range(VOCAB)), list(range(VOCAB))
    )  # somebody earlier
    state.set(0, Sampling(presence_penalty=1.0), 0, [1, 2])
    state.clear(2)
    state.set(2, sampling, 0, prompt, output[:known])
    for token in output[known:]:
        state.observe([0, 2], torch.tensor([(token + 1) % VOCAB, token]))
    expected = torch.tensor(penalised_slowly(logits.tolist(), prompt, output, sampling), dtype=torch.float64)
    torch.testing.assert_close(score(state, 2, logits), expected, rtol=1e-12, atol=1e-12)
    chosen = state.sample(logits[None], [2], torch.tensor([len(output)])).tokens
    assert expected[chosen] == expected.max()


@pytest.mark.parametrize("penalty", [0.7, 1.3, 4.0])
def test_repetition_penalty_is_transformers(penalty):
    logits, prompt, output = logits_of(1, seed=8)[0], [1, 5, 5, 9], [2, 9, 9, 17]
    state = BatchSampler(1, VOCAB)
    state.set(0, Sampling(repetition_penalty=penalty), 0, prompt, output)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([prompt + output]), logits.double()[None]
    )[0]
    torch.testing.assert_close(score(state, 0, logits), theirs)
    assert not theirs.equal(logits.double())


def test_one_slot_may_be_observed_several_times_in_a_step():
    state = BatchSampler(2, VOCAB)
    state.set(0, Sampling(temperature=1.0), 0, [])
    state.observe([0, 0], torch.tensor([1, 2]))  # nobody asked for a history: there is none
    assert state._output is None
    state.set(1, Sampling(frequency_penalty=1.0), 0, [4], [7])
    state.observe([1, 0, 1, 1], torch.tensor([7, 3, 7, 2]))
    assert state._output[1].nonzero()[:, 0].tolist() == [2, 7] and state._output[1, 7] == 3
    assert state._output[0].sum() == 0 and state._prompt[1].nonzero().tolist() == [[4]]


def test_inference_mode_may_come_and_go():
    state, index = BatchSampler(2, VOCAB), torch.tensor([0])
    with torch.inference_mode():
        state.set(0, Sampling(temperature=1.0, presence_penalty=1.0), 0, [1])
        state.observe([0], state.sample(logits_of(1), [0], index).tokens)
    state.set(1, Sampling(presence_penalty=1.0), 0, [2])
    state.observe([0], state.sample(logits_of(1), [0], index).tokens)
    assert state._output[0].sum() == 2


class Operations(TorchDispatchMode):
    """Names of all tensor operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_greedy_batch_costs_one_argmax():
    state = BatchSampler(40, VOCAB)
    for slot in range(40):
        state.set(slot, Sampling(top_k=3, top_p=0.5, seed=1), slot, [1])
    logits, index = logits_of(40), torch.zeros(40, dtype=torch.long)
    with Operations() as seen:
        found = state.sample(logits, range(40), index)
        state.observe(range(40), found.tokens)
    assert seen.names == ["argmax"]
    assert found.tokens.equal(logits.argmax(-1)) and (found.logprobs, found.top, found.bad) == (
        None,
        None,
        None,
    )
    with Operations() as seen:
        state.sample(logits, range(40), index, check=True)
    assert seen.names.count("argmax") == 1 and {"amax", "isnan", "any"}.isdisjoint(seen.names)


def test_nothing_waits_for_the_device():
    """No operation brings a value to the host or has a shape that depends on one."""
    waiting = {
        "_local_scalar_dense",
        "nonzero",
        "item",
        "masked_select",
        "unique",
        "equal",
        "is_nonzero",
        "index",
    }
    state = BatchSampler(len(MIXED), VOCAB)
    logits, index = logits_of(len(MIXED)), torch.zeros(len(MIXED), dtype=torch.long)
    with Operations() as seen:
        for slot, sampling in enumerate(MIXED):
            state.set(slot, sampling, slot, PROMPTS[slot], [1, 2])
        found = state.sample(logits, range(len(MIXED)), index, check=True)
        state.observe(range(len(MIXED)), found.tokens)
    assert waiting.isdisjoint(seen.names) and "argmax" in seen.names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_as_a_cpu_does_and_nothing_waits():
    vocab, found = 5003, {}
    logits = logits_of(len(MIXED), vocab)
    for device in ("cpu", "cuda"):
        state, chosen = BatchSampler(len(MIXED), vocab, device), []
        there = logits.to(device)
        positions = [torch.full((len(MIXED),), step, device=device) for step in range(50)]
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            for slot, sampling in enumerate(MIXED):
                state.set(slot, sampling, slot, PROMPTS[slot], [1, 2])
            for index in positions:
                chosen.append(state.sample(there, range(len(MIXED)), index, check=True).tokens)
                state.observe(range(len(MIXED)), chosen[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found[device] = torch.stack(chosen).cpu()
    assert found["cpu"].equal(found["cuda"])


def test_bad_rows_are_found_and_disturb_nobody():
    logits = logits_of(len(MIXED) * 2)
    state, slots = BatchSampler(len(logits), VOCAB), range(len(logits))
    for slot in slots:
        state.set(slot, MIXED[slot % len(MIXED)], slot, PROMPTS[slot % len(MIXED)])
    index = torch.zeros(len(logits), dtype=torch.long)
    clean = state.sample(logits, slots, index, check=True)
    assert not clean.bad.any()
    for fault in (math.nan, -math.inf):
        broken = logits.clone()
        broken[::3] = fault
        if math.isnan(fault):  # one NaN among good numbers is enough
            broken[::3] = logits[::3]
            broken[::3, 11] = fault
        found = state.sample(broken, slots, index, check=True)
        assert found.bad.tolist() == [row % 3 == 0 for row in slots]
        assert found.tokens[~found.bad].equal(clean.tokens[~found.bad])
        assert ((found.tokens >= 0) & (found.tokens < VOCAB)).all()


def test_the_lowest_id_wins_a_tie():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    state = BatchSampler(2, 4)
    for sampling in (Sampling(), Sampling(presence_penalty=0.5), Sampling(repetition_penalty=1.1, top_p=0.3)):
        for slot in (0, 1):
            state.set(slot, sampling, slot, [3])
        assert state.sample(logits, [0, 1], torch.tensor([0, 0])).tokens.tolist() == [1, 0]


def test_log_probabilities_are_the_models_own():
    logits = logits_of(4, seed=2)
    logits[3, [2, 7]] = 50.0  # equal best ones
    asked = [Sampling(temperature=3.0, top_k=4, logprobs=0), Sampling(temperature=2.0), Sampling(logprobs=2),
             Sampling(repetition_penalty=9.0, logprobs=5)]  # fmt: skip
    state = BatchSampler(4, VOCAB)
    for slot, sampling in enumerate(asked):
        state.set(slot, sampling, 3, [0])
    found = state.sample(logits, range(4), torch.zeros(4, dtype=torch.long))
    expected = logits.double().log_softmax(-1)
    wanted = torch.tensor([0, 2, 3])
    chosen = expected.gather(-1, found.tokens[:, None])[wanted, 0].float()
    torch.testing.assert_close(found.logprobs[wanted], chosen)
    assert found.logprobs[1].isnan() and found.top.logprobs[1].isnan().all()
    values, tokens = expected.topk(5, dim=-1)
    assert found.top.ids[2].equal(tokens[2]) and found.top.ids[3, :2].tolist() == [2, 7]
    torch.testing.assert_close(found.top.logprobs[wanted], values[wanted].float())
    only = state.sample(logits[:1], [0], torch.tensor([0]))
    assert only.top is None and only.logprobs.equal(found.logprobs[:1])


def test_an_empty_batch():
    found = BatchSampler(1, VOCAB).sample(
        torch.empty(0, VOCAB), [], torch.empty(0, dtype=torch.long), check=True
    )
    assert found.tokens.shape == (0,) and found.bad.shape == (0,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": "1"},
        {"temperature": None}, {"temperature": True}, {"top_k": 0}, {"top_k": 2.5}, {"top_k": True},
        {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan}, {"min_p": -0.1}, {"min_p": 1.5},
        {"repetition_penalty": 0.0}, {"presence_penalty": 2.1}, {"frequency_penalty": -2.1},
        {"frequency_penalty": math.nan}, {"seed": 2**64}, {"seed": 0.5}, {"logprobs": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_field_is_named(wrong):
    with pytest.raises(LabkitError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_what_needs_a_history():
    assert not Sampling(temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, seed=3, logprobs=3).needs_history
    for name, value in (("repetition_penalty", 1.1), ("presence_penalty", -1.0), ("frequency_penalty", 0.1)):
        assert Sampling(**{name: value}).needs_history


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.set(2, Sampling(), 0, []), "slot 2"),
        (lambda s: s.set(-1, Sampling(), 0, []), "slot -1"),
        (lambda s: s.set(0, Sampling(), None, []), "seed"),
        (lambda s: s.set(0, Sampling(), 2**64, []), "seed"),
        (lambda s: s.set(0, Sampling(logprobs=VOCAB + 1), 0, []), "alternatives"),
        (lambda s: s.set(0, Sampling(presence_penalty=1.0), 0, [VOCAB]), "vocabulary"),
        (lambda s: s.set(0, Sampling(presence_penalty=1.0), 0, [0], [-1]), "vocabulary"),
        (lambda s: s.sample(logits_of(1), [1], torch.tensor([0])), "no request"),
        (lambda s: s.sample(logits_of(1), [5], torch.tensor([0])), "slot 5"),
        (lambda s: s.sample(logits_of(2), [0], torch.tensor([0])), "fit"),
        (lambda s: s.sample(logits_of(1, 5), [0], torch.tensor([0])), "fit"),
        (lambda s: s.sample(logits_of(1), [0], torch.tensor([0, 1])), "fit"),
        (lambda s: s.clear(9), "slot 9"),
        (lambda s: BatchSampler(0, VOCAB), "slots"),
    ],
)
def test_misuse_is_refused(call, says):
    state = BatchSampler(2, VOCAB)
    state.set(0, Sampling(), 0, [])
    with pytest.raises(LabkitError, match=says):
        call(state)
    assert state.sample(logits_of(1), [0], torch.tensor([0])).tokens.shape == (1,)


def test_a_cleared_slot_is_empty():
    state = BatchSampler(1, VOCAB)
    state.set(0, Sampling(), 0, [])
    state.clear(0)
    with pytest.raises(LabkitError):
        state.sample(logits_of(1), [0], torch.tensor([0]))
