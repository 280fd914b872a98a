"""Fused layers and CUDA graphs on a GPU: compiled kernels in whole models, under the engine's random load."""

import copy
import random
import warnings

import pytest
import torch
from test_fuse import ALONE, KNOWN, NAMES, only
from tiny_architectures import VOCAB, build
from tiny_models import tiny_llama, tiny_tokenizer

from labkit import fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.batch.sampling import Sampling
from labkit.cache import Chunk, PagedCache, forward, install, remove
from labkit.fuse.graphs import StepGraphs
from labkit.models import LM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda:0")


def lm_of(model, name="tiny"):
    model = model.to(DEVICE)
    return LM(model, tiny_tokenizer(), name, DEVICE, model.dtype)


def run(lm, seed=0, **settings):
    """Logits of random pieces of random rows, in an order that mixes chunks and decodes."""
    draw = random.Random(seed)
    texts = [[draw.randrange(1, VOCAB) for _ in range(n)] for n in (70, 3, 33, 12, 40)]
    done, found = [0] * len(texts), []
    cache = PagedCache(lm, 80, 5, share=False, **settings)
    install(lm.model)
    try:
        for row, text in enumerate(texts):
            cache.open(row, text)
        while any(done[row] < len(text) for row, text in enumerate(texts)):
            counts = {
                row: min(draw.choice((1, 1, 2, 17)), len(text) - done[row]) for row, text in enumerate(texts)
            }
            rows = sorted((row for row in counts if counts[row]), key=lambda row: counts[row] != 1)
            pieces = [Chunk(row, done[row], texts[row][done[row] : done[row] + counts[row]]) for row in rows]
            with torch.no_grad():
                found.append(forward(lm, cache.pack(pieces)).double())
            for row in rows:
                done[row] += counts[row]
    finally:
        remove(lm.model)
        cache.close()
    return torch.cat(found)


@pytest.mark.parametrize("name", KNOWN)
def test_every_part_alone_and_all_together_equal_the_model_in_fp64(name):
    exact = build(name)
    lm = lm_of(copy.deepcopy(exact).float())
    wanted = run(lm_of(exact))
    for chosen in [(), NAMES, *ALONE]:
        fuse.apply(lm, **only(chosen))
        torch.testing.assert_close(run(lm), wanted, rtol=2e-4, atol=2e-4)
    fuse.remove(lm)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_the_model_itself(name, dtype):
    exact = build(name)
    lm, wanted = lm_of(copy.deepcopy(exact).to(dtype)), run(lm_of(exact))
    own = (run(lm) - wanted).square().mean()
    fuse.apply(lm)
    assert (run(lm) - wanted).square().mean() < 1.5 * own


def load(case, lm):
    """Requests that come, go and are cancelled, in an engine of a few rows and too few blocks; two of a kind."""
    draw = random.Random(case)
    common = [draw.randrange(1, VOCAB) for _ in range(draw.randint(0, 30))]
    asked = [
        Request(
            prompt=draw.choice(([], common)) + [draw.randrange(1, VOCAB) for _ in range(draw.randint(1, 60))],
            max_tokens=draw.randint(1, 30),
            ignore_eos=True,
            priority=draw.choice((0, 0, 1)),
            sampling=Sampling(temperature=draw.choice((0.0, 0.0, 0.9)), seed=draw.randrange(1000)),
        )
        for _ in range(draw.randint(4, 14))
    ]
    size = draw.choice((1, 4, 16))
    room = -(-max(len(each.prompt) + each.max_tokens for each in asked) // size)
    settings = {"blocks": room + draw.randint(1, 40 // size + 1), "block_size": size, "rows": draw.randint(1, 9),
                "step_tokens": draw.choice((9, 40, 300))}  # fmt: skip
    return asked, settings, [draw.randint(0, 3) for _ in asked], draw.randrange(len(asked))


def served(lm, asked, settings, pauses, cancelled, **more):
    with engine_for(lm, **settings, **more) as engine:
        tickets = []
        for request, pause in zip(asked, pauses, strict=True):
            tickets.append(engine.submit(request))
            for _ in range(pause):
                engine.step()
        engine.cancel(tickets[cancelled])
        engine.drain()
        assert engine.idle and engine.scheduler.tables.pool.used == 0
    return [ticket.first.tokens for ticket in tickets], sum(ticket.preemptions for ticket in tickets)


@pytest.fixture
def replays(monkeypatch):
    """How many steps were replayed, and how many were not captured."""
    counts, plain = {True: 0, False: 0}, StepGraphs.run

    def run(self, step):
        logits = plain(self, step)
        counts[logits is not None] += 1
        return logits

    monkeypatch.setattr(StepGraphs, "run", run)
    return counts


@pytest.mark.parametrize("case", range(48))
def test_a_request_says_under_load_what_it_says_alone(case, replays):
    exact = build(KNOWN[case % len(KNOWN)])
    lm, plain = lm_of(copy.deepcopy(exact).float()), lm_of(exact)
    asked, settings, pauses, cancelled = load(case, lm)
    with engine_for(plain, blocks=400, block_size=4, rows=1) as engine:
        alone = [engine.run([request])[0].first.tokens for request in asked]
    fuse.apply(lm)
    found, _ = served(lm, asked, settings, pauses, cancelled, graphs=True)
    for number, (mine, wanted) in enumerate(zip(found, alone, strict=True)):
        assert mine == (wanted[: len(mine)] if number == cancelled else wanted)
    assert replays[True] > 0


def test_prompts_and_decodes_are_replayed(replays):
    lm = lm_of(build("llama").float())
    fuse.apply(lm)
    asked, settings, pauses, cancelled = load(3, lm)
    served(lm, asked, {**settings, "step_tokens": 64, "rows": 6}, pauses, cancelled, graphs=True)
    assert replays[False] == 0
    fuse.remove(lm)
    served(lm, asked, {**settings, "step_tokens": 64, "rows": 6}, pauses, cancelled, graphs=True)
    assert replays[False] > 0, "without the chunk kernel only decodes are captured"


def test_int8_pages_are_captured_too(replays):
    lm = lm_of(tiny_llama(0).float())
    fuse.apply(lm)
    asked, settings, pauses, cancelled = load(5, lm)
    plain, _ = served(lm, asked, settings, pauses, cancelled, quantised=True)
    found, _ = served(lm, asked, settings, pauses, cancelled, quantised=True, graphs=True)
    assert found == plain and replays[True]


def test_graphs_follow_what_is_done_to_the_model(replays):
    lm = lm_of(build("llama").float())
    prompt = list(range(1, 20))

    def tokens(engine):
        return engine.run([Request(prompt=prompt, max_tokens=12, ignore_eos=True)])[0].first.tokens

    with engine_for(lm, blocks=40, rows=2, share=False, graphs=True) as engine:
        before = tokens(engine)
        fuse.apply(lm)
        assert tokens(engine) == before
        fuse.remove(lm)
        assert tokens(engine) == before
        with torch.no_grad():  # in place: the graphs read the new numbers
            lm.model.lm_head.weight.neg_()
        negated = tokens(engine)
        lm.model.lm_head.weight = torch.nn.Parameter(-lm.model.lm_head.weight.detach())  # another memory
        assert negated != before and tokens(engine) == before
    assert replays[True] > 40


def test_a_model_that_cannot_be_captured_runs_and_says_so(replays):
    lm = lm_of(build("llama").float())
    head, plain = lm.model.lm_head, lm.model.lm_head.forward
    head.forward = lambda x: plain(x) * float(x.abs().max() > -1)  # looks at a value on the host
    request = Request(prompt=[5, 6, 7], max_tokens=6, ignore_eos=True)
    with engine_for(lm, blocks=20, rows=2) as engine:
        wanted = engine.run([request])[0].first.tokens
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        engine = engine_for(lm, blocks=20, rows=2, graphs=True)
    with engine:
        assert engine.run([request])[0].first.tokens == wanted
    assert not replays[True]
    del head.forward
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with engine_for(lm, blocks=20, rows=2, graphs=True) as engine:
            assert engine.run([request])[0].first.tokens == wanted
    assert replays[True]


def test_hooks_keep_running(replays):
    lm, calls = lm_of(build("llama").float()), []
    request = Request(prompt=[5, 6, 7], max_tokens=6, ignore_eos=True)
    with engine_for(lm, blocks=20, rows=2, graphs=True) as engine:
        wanted = engine.run([request])[0].first.tokens
        hook = lm.model.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
        with pytest.warns(UserWarning, match=r"layers\.1\.mlp has hooks"):
            assert engine.run([request])[0].first.tokens == wanted
        seen, before = len(calls), replays[True]
        hook.remove()
        assert engine.run([request])[0].first.tokens == wanted
        assert seen >= 6 and len(calls) == seen and replays[True] > before


def test_replaying_never_waits_for_the_device():
    lm = lm_of(build("llama").float())
    fuse.apply(lm)
    with engine_for(lm, blocks=60, rows=4, step_tokens=64, graphs=True) as engine:
        step = engine.runner
        ticket = engine.submit(Request(prompt=list(range(1, 30)), max_tokens=20, ignore_eos=True))
        for _ in range(4):
            engine.step()
        launch, modes = step.launch, []

        def strict(given):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return launch(given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                modes.append(1)

        step.launch = strict
        engine.drain()
        assert ticket.done and len(modes) > 10
