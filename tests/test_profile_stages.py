"""The plain loop, latency and stage reports on a tiny model, with clocks that we wind ourselves."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from profile_stand_in import tiny_lm

from labkit.errors import LabkitError
from labkit.profile import STAGES, Sampler, decode_steps, generate, latency_report, stage_report, stages
from labkit.profile.budget import StageReport, StageRun
from labkit.profile.stages import StageClock
from labkit.timing import total_latency

PROMPT = "def préfixe(x):\n    return "


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


def ticking():
    """A clock that advances by 1, 2, 3, … so that no two intervals are alike."""
    total = itertools.accumulate(itertools.count(1))
    return lambda: float(next(total))


def test_the_plain_loop_says_what_transformers_says(lm):
    ids = lm.encode(PROMPT)
    made = generate(lm, PROMPT, 12)
    expected = lm.model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    assert list(made.ids) == expected[0, ids.shape[1] :].tolist()
    assert made.prompt_tokens == ids.shape[1] and len(made.latency.stamps) == 12
    assert generate(lm, ids, 12).ids == made.ids == generate(lm, ids[0].tolist(), 12).ids


def test_the_loop_asks_the_cache_and_not_the_whole_prompt_again(lm, monkeypatch):
    seen = []
    forward = type(lm.model).forward

    def watched(self, **arguments):
        seen.append(arguments["input_ids"].shape[1])
        return forward(self, **arguments)

    monkeypatch.setattr(lm.model, "forward", watched.__get__(lm.model))
    made = generate(lm, PROMPT, 4)
    assert seen == [made.prompt_tokens, 1, 1, 1]


def test_decode_steps_go_on_where_generate_would(lm):
    decode = decode_steps(lm, PROMPT, 3)
    assert generate(lm, PROMPT, 7).ids[1:] == (*decode(), *decode())


@pytest.mark.parametrize("call", [
    lambda lm: generate(lm, "", 3), lambda lm: generate(lm, PROMPT, 0), lambda lm: generate(lm, PROMPT, 10_000),
    lambda lm: latency_report(lm, PROMPT, 3, repeats=0), lambda lm: stage_report(lm, PROMPT, 3, repeats=0),
    lambda lm: latency_report(lm, PROMPT, 1).tpot, lambda lm: Sampler(-1), lambda lm: Sampler(1, top_p=0),
])  # fmt: skip
def test_impossible_requests_are_refused(lm, call):
    with pytest.raises(LabkitError):
        call(lm)


def test_a_latency_report_adds_up(lm):
    report = latency_report(lm, PROMPT, 9, repeats=4, clock=ticking())
    assert len(report.runs) == 4 and len(report.itl) == 4 * 8
    run = report.typical
    assert run.e2e == pytest.approx(total_latency(run.ttft, run.tpot, run.tokens))
    assert sorted(one.e2e for one in report.runs)[1] == run.e2e
    assert report.text == lm.decode(list(generate(lm, PROMPT, 9).ids))
    assert "TTFT" in str(report) and "(n − 1)" in str(report)
    assert repr(report) == str(report)


def test_one_of_a_kind_is_singular(lm):
    report = str(latency_report(lm, "x", 1, repeats=1))
    assert "1 prompt token, 1 new, 1 run\n" in report
    assert "TPOT" not in report and "TTFT" in report  # one token has no pace
    assert "1 prompt token, 1 new, median of 1 run\n" in str(stage_report(lm, "x", 1, repeats=1))
    with pytest.raises(LabkitError, match="512 positions, too few for 1 prompt token and 512 new"):
        generate(lm, "x", 512)


def test_stages_and_remainder_are_the_end_to_end_time(lm):
    report = stage_report(lm, PROMPT, 6, repeats=3, now=ticking())
    assert tuple(report.stages) == STAGES
    assert sum(report.stages.values()) + report.remainder == pytest.approx(report.e2e, rel=1e-12)
    assert sum(report.shares.values()) == pytest.approx(1)
    assert report.remainder > 0 and report.e2e == report.steady.e2e
    assert report.stages["compile"] == 0 and "compile is off" in str(report)
    assert all(seconds > 0 for stage, seconds in report.stages.items() if stage != "compile")
    assert len(report.runs) == len(report.unsynchronised_runs) == 3
    assert report.text == lm.decode(list(generate(lm, PROMPT, 6).ids))


def totals(*seconds):
    none = dict.fromkeys(STAGES, 0.0)
    return tuple(StageRun({**none, "decode": total - 0.1}, total) for total in seconds)


@pytest.mark.parametrize(
    ("waiting", "not_waiting", "said"),
    [
        ((3.0, 3.01), (2.0, 2.01), "middle of 2 runs"),
        ((3.0, 3.02, 3.01), (2.0, 2.01, 2.02), "median of 3 runs"),
        ((3.0, 4.5), (2.9, 2.0), "less than the noise"),  # 1 s apart, and two runs further than that
        ((2.0, 2.01), (3.0, 3.01), "less than the noise"),
    ],
)
def test_the_cost_of_waiting_is_that_of_the_shown_runs(waiting, not_waiting, said):
    report = StageReport("m", "cpu", 1, 1, "", None, None, totals(*waiting), totals(*not_waiting))
    shown = sum(report.unsynchronised.values()) + 0.1  # the remainder of these runs
    assert report.sync_cost == pytest.approx(report.e2e - shown)
    assert said in str(report)
    assert ("less than the noise" in str(report)) == (report.sync_cost <= report.noise)


class Device:
    """Work that is queued at once and done when someone waits; the clock sees only waiting."""

    def __init__(self) -> None:
        self.time = self.pending = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, device=None) -> None:
        self.time += self.pending
        self.pending = 0.0


@pytest.mark.parametrize("waits", [True, False])
def test_without_waiting_the_forward_is_blamed_on_sampling(monkeypatch, waits):
    device = Device()
    monkeypatch.setattr(stages, "synchronize", device.wait)

    def forward(ids, cache):
        device.pending += 10.0 if ids.shape[1] > 1 else 2.0
        return torch.zeros(1, 256)

    class Fetching(Sampler):
        def __call__(self, logits):
            device.wait()  # what int(token) does on a GPU
            return super().__call__(logits)

    lm = tiny_lm()
    clock = StageClock("cpu", synchronise=waits, now=device.now)
    run, _ = stages.staged_run(
        lm, PROMPT, 5, clock, forward=forward, make_cache=lambda: None, sampler=Fetching()
    )
    blamed = {stage: seconds for stage, seconds in run.seconds.items() if seconds}
    assert blamed == ({"prefill": 10.0, "decode": 8.0} if waits else {"sampling": 18.0})
    assert run.e2e == 18.0


def test_compilation_is_its_own_stage_and_changes_no_token(lm):
    torch.compiler.reset()
    report = stage_report(lm, PROMPT, 5, compile=True, backend="eager", repeats=2)
    assert report.first is not None
    assert report.e2e == pytest.approx(max(report.first.e2e, report.steady.e2e))
    assert sum(report.stages.values()) + report.remainder == pytest.approx(report.e2e)
    assert report.stages["compile"] == report.compile_seconds > 0
    assert report.text == lm.decode(list(generate(lm, PROMPT, 5).ids))
    assert "paid once" in str(report)


def test_sampling_keeps_the_nucleus_and_repeats_from_its_seed():
    logits = torch.tensor([[2.0, 1.0, 0.0, -8.0]]).repeat(4000, 1)
    probabilities = torch.softmax(logits[0], 0)
    sampler = Sampler(1.0, top_p=0.9, seed=3)  # 0.665 + 0.245 reach 0.9: the third is out
    drawn = sampler(logits)
    sampler.restart()
    assert torch.equal(drawn, sampler(logits))
    assert set(drawn.tolist()) == {0, 1}
    share = float((drawn == 0).float().mean())
    assert share == pytest.approx(float(probabilities[0] / probabilities[:2].sum()), abs=0.04)
    assert set(Sampler(1.0, top_p=1e-9)(logits).tolist()) == {0} == set(Sampler()(logits).tolist())
    spread = Sampler(1.0)(logits)
    assert float((spread == 2).float().mean()) == pytest.approx(float(probabilities[2]), abs=0.03)


def test_a_stage_report_may_sample(lm):
    one, other = (stage_report(lm, PROMPT, 8, sampler=Sampler(1.5, 0.95, seed), repeats=1) for seed in (1, 2))
    again = stage_report(lm, PROMPT, 8, sampler=Sampler(1.5, 0.95, 1), repeats=1)
    assert one.text == again.text != other.text


def test_a_model_that_cannot_keep_fewer_logits_still_runs(lm):
    class Wrapped(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def forward(self, input_ids, past_key_values, use_cache):
            return SimpleNamespace(
                logits=self.inner(
                    input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache
                ).logits
            )

    other = tiny_lm()
    other.model = Wrapped(lm.model)
    assert generate(other, PROMPT, 5).ids == generate(lm, PROMPT, 5).ids
