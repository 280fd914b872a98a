"""Draws have the right distribution, filters keep what transformers keeps, and the noise is noise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from labkit.batch.sampler import BatchSampler
from labkit.batch.sampling import Sampling
from labkit.kernels import draws

VOCAB = 24
DRAWS = 40_000


def logits_of(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def draw(logits: torch.Tensor, sampling: Sampling, times: int = DRAWS, seed: int = 5) -> torch.Tensor:
    """`times` consecutive draws of one request from the same logits [vocab]."""
    state = BatchSampler(1, logits.shape[-1])
    state.set(0, sampling, seed, prompt=[])
    return state.sample(logits.expand(times, -1), [0] * times, torch.arange(times)).tokens


def exact(logits: torch.Tensor, sampling: Sampling, order: str = "tkpm") -> torch.Tensor:
    """The distribution that transformers' warpers define, in the given order of filters, float64 [vocab]."""
    warpers = {
        "t": TemperatureLogitsWarper(sampling.temperature),
        "k": TopKLogitsWarper(sampling.top_k or logits.shape[-1]),
        "p": TopPLogitsWarper(sampling.top_p),
        "m": MinPLogitsWarper(sampling.min_p),
    }
    processors = LogitsProcessorList([warpers[letter] for letter in order])
    return processors(torch.zeros(1, 1, dtype=torch.long), logits.double()[None])[0].softmax(-1)


def excess(tokens: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square of the draws against the distribution, in standard deviations above its mean."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    if counts[expected == 0].any():
        return math.inf
    want = expected[expected > 0] * len(tokens)
    degrees = max(len(want) - 1, 1)
    chi_square = ((counts[expected > 0] - want) ** 2 / want).sum().item()
    return (chi_square - degrees) / math.sqrt(2 * degrees)


SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=1.8),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_k=VOCAB + 100),
    Sampling(temperature=1.0, top_p=0.7),
    Sampling(temperature=1.0, top_p=1e-9),
    Sampling(temperature=1.0, min_p=0.2),
    Sampling(temperature=1.0, min_p=1.0),
    Sampling(temperature=1.4, top_k=6, top_p=0.8),
    Sampling(temperature=1.4, top_p=0.9, min_p=0.15),
    Sampling(temperature=1.4, top_k=12, top_p=0.95, min_p=0.05),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_draws_follow_the_exact_distribution(sampling):
    logits = logits_of(1, seed=3)[0]
    assert abs(excess(draw(logits, sampling), exact(logits, sampling))) < 4


NUCLEUS = {"temperature": 1.4, "top_k": 10, "top_p": 0.6}
FLOOR = {"temperature": 1.4, "top_p": 0.9, "min_p": 0.15}
FAULTS = {
    "top-p before top-k": (NUCLEUS, NUCLEUS, "tpk"),
    "temperature after the filters": (NUCLEUS, NUCLEUS, "kpt"),
    "no top-p": (NUCLEUS, NUCLEUS, "tk"),
    "no top-k": (NUCLEUS, NUCLEUS, "tp"),
    "no temperature": (NUCLEUS, NUCLEUS, "kp"),
    "another temperature": (NUCLEUS, NUCLEUS | {"temperature": 1.5}, "tkp"),
    "no min-p": (FLOOR, FLOOR, "tp"),
    "min-p of the whole, not of the largest": (FLOOR, FLOOR | {"min_p": 0.02}, "tpm"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_test_of_distributions_notices(fault):
    """Each fault that a sampler is likely to have lies far outside the limit of the test above."""
    right, wrong, order = FAULTS[fault]
    logits = logits_of(1, seed=3)[0]
    assert excess(draw(logits, Sampling(**right)), exact(logits, Sampling(**wrong), order)) > 8


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 70), st.integers(1, 80), st.floats(0.01, 1), st.floats(0, 1))
def test_filters_keep_what_transformers_keeps(seed, vocab, top_k, top_p, min_p):
    logits = logits_of(3, vocab, seed, scale=3.0).double()
    scores = draws.relative(logits, torch.full((3, 1), 0.8, dtype=torch.float64))
    top_ks = torch.full((3, 1), min(top_k, vocab))
    kept = draws.top_k_top_p(scores, top_ks, torch.full((3, 1), top_p, dtype=torch.float64))
    kept = draws.min_p(kept, torch.full((3, 1), min_p, dtype=torch.float64))
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = torch.stack([exact(row, sampling) for row in logits])
    assert (kept > -torch.inf).equal(expected > 0)
    assert (kept.argmax(-1) == logits.argmax(-1)).all()
    torch.testing.assert_close(kept.softmax(-1), expected, rtol=1e-9, atol=1e-12)


def test_equal_logits_at_a_filters_edge():
    scores = torch.tensor([[0.0, -1.0, 0.0, -1.0, 0.0, -2.0]], dtype=torch.float64)
    whole = torch.ones(1, 1, dtype=torch.float64)
    tied = draws.top_k_top_p(scores, torch.tensor([[2]]), whole)  # as transformers: equal to the k-th stays
    assert (tied > -torch.inf).tolist() == [[True, False, True, False, True, False]]
    half = draws.top_k_top_p(scores, torch.tensor([[3]]), whole * 0.5)  # two of three equal ones reach 0.5
    assert (half > -torch.inf).tolist() == [[True, False, True, False, False, False]]
    level = torch.zeros(1, 4096, dtype=torch.float64)  # a half is reached exactly, by the lower ids
    half = draws.top_k_top_p(level, torch.tensor([[4096]]), whole * 0.5) > -torch.inf
    assert half[0, :2048].all() and not half[0, 2048:].any()


def test_without_top_p_even_the_least_likely_stays():
    scores = torch.tensor([[0.0, -60.0, -700.0]], dtype=torch.float64)
    kept = draws.top_k_top_p(scores, torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.float64))
    assert kept.equal(scores)


def split_mix(state: int, count: int) -> list[int]:
    """SplitMix64 in Python integers, as published."""
    found = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        found.append(z ^ (z >> 31))
    return found


def test_noise_is_split_mix():
    assert split_mix(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # the published first outputs
    first = draws.uniforms(torch.tensor([0]), torch.tensor([0]), 2)[0]
    assert [int(u * 2**52) for u in first.tolist()] == [z >> 12 for z in split_mix(0, 2)]
    for seed, index in [(1, 0), (-7, 3), (2**64 - 1, 100), (2**63, 2**40)]:
        key = split_mix((split_mix((seed - 1) * 0x9E3779B97F4A7C15 % 2**64, 1)[0] + (index - 1) * 0x9E3779B97F4A7C15)
                        % 2**64, 1)[0]  # fmt: skip
        noise = draws.uniforms(torch.tensor([draws.signed(seed)]), torch.tensor([index]), 9)[0]
        assert [int(u * 2**52) for u in noise.tolist()] == [z >> 12 for z in split_mix(key, 9)]


def test_noise_is_uniform_and_never_reaches_an_end():
    noise = draws.uniforms(torch.arange(40), torch.zeros(40, dtype=torch.long), 25_000).flatten()
    assert 0 < noise.min() and noise.max() < 1
    even = torch.full((256,), 1 / 256, dtype=torch.float64)
    for scale in (1, 2**8, 2**24, 2**40):  # the upper bits, and those below
        assert abs(excess((noise * scale % 1 * 256).long(), even)) < 4
    ends = torch.tensor([0, 2**52 - 1]).double().add(0.5).mul(2.0**-52)
    assert 0 < ends[0] and ends[1] < 1 and (-(-ends.log()).log()).isfinite().all()


def test_neighbouring_draws_are_independent():
    """Consecutive indices, seeds that differ by 1, neighbouring tokens, and seed and index exchanged."""
    n, tokens = 300, 1000
    numbers, zeros = torch.arange(n), torch.zeros(n, dtype=torch.long)
    by_index = draws.uniforms(zeros + 9, numbers, tokens)
    by_seed = draws.uniforms(numbers, zeros + 9, tokens)
    pairs = {
        "index": (by_index[:-1], by_index[1:]),
        "index, shifted token": (by_index[:-1, 1:], by_index[1:, :-1]),
        "seed": (by_seed[:-1], by_seed[1:]),
        "seed, shifted token": (by_seed[:-1, 1:], by_seed[1:, :-1]),
        "token": (by_seed[:, :-1], by_seed[:, 1:]),
        "exchanged": (torch.cat([by_index[:9], by_index[10:]]), torch.cat([by_seed[:9], by_seed[10:]])),
        "opposite seeds": (by_seed[1:], draws.uniforms(-numbers[1:], zeros[1:] + 9, tokens)),
    }
    for name, (one, other) in pairs.items():
        for transform in (lambda u: u, lambda u: (u - 0.5) ** 2, lambda u: u * 2**30 % 1):
            table = torch.stack([transform(one).flatten(), transform(other).flatten()])
            correlation = torch.corrcoef(table)[0, 1].item()
            assert abs(correlation) < 4.5 / math.sqrt(table.shape[1]), name
    assert by_index.unique().numel() == by_index.numel()


def test_successive_tokens_are_independent():
    logits = torch.zeros(8)
    tokens = draw(logits, Sampling(temperature=1.0))
    assert abs(excess(tokens[:-1] * 8 + tokens[1:], torch.full((64,), 1 / 64, dtype=torch.float64))) < 4
    others = draw(logits, Sampling(temperature=1.0), seed=6)
    assert abs(excess(tokens * 8 + others, torch.full((64,), 1 / 64, dtype=torch.float64))) < 4


def test_infinite_logits():
    logits = logits_of(1)[0]
    logits[::2] = -math.inf
    tokens = draw(logits, Sampling(temperature=1.0, top_p=0.999))
    assert (tokens % 2 == 1).all() and len(tokens.unique()) > 5
    logits[[4, 9]] = math.inf  # these two share everything
    for sampling in (Sampling(temperature=1.0), Sampling(temperature=1e-3, top_p=0.9, top_k=9, min_p=0.5)):
        tokens = draw(logits, sampling)
        assert set(tokens.tolist()) == {4, 9}
        assert abs((tokens == 4).double().mean() - 0.5) < 0.02
    state = BatchSampler(1, VOCAB)
    state.set(0, Sampling(logprobs=1), 0, [])
    found = state.sample(logits[None], [0], torch.tensor([0]), check=True)
    assert found.tokens.tolist() == [4] and not found.bad.any()
    assert found.logprobs.item() == pytest.approx(-math.log(2))


def test_small_temperatures_and_large_logits_do_not_overflow():
    logits = torch.tensor([1e38, 1.0001e38, -3e38, 3.0])
    for temperature in (5e-324, 1e-30, 1e-6):
        assert (draw(logits, Sampling(temperature=temperature, top_p=0.99, min_p=0.1), 50) == 1).all()


def test_samples_of_one_request_have_seeds_of_their_own():
    for seed in (0, 1, -5, 2**63 + 3):
        seeds = [draws.sample_seed(seed, number) for number in range(200)]
        assert seeds[0] == seed and len(set(seeds)) == 200
        assert all(-(2**63) <= each < 2**64 for each in seeds)
    neighbours = {draws.sample_seed(seed, number) for seed in range(50) for number in range(50)}
    assert len(neighbours) == 2500
