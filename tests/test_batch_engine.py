"""The engine on real models: the tokens of transformers' own generate, alone or in any company, and their text."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import tiny_llama, tiny_tokenizer
from transformers import DynamicCache

from labkit.batch.build import engine_for
from labkit.batch.policy import Continuous, static
from labkit.batch.request import Reason, Request
from labkit.batch.sampling import Sampling
from labkit.errors import LabkitError
from labkit.models import LM

TEXTS = (
    "def mean(values):\n",
    "import json\n\n\nclass Re",
    "é and ü: ",
    "x",
    "for key in sorted(keys):\n    " * 3,
)


def lm_of(seed=0, **changes):
    model = tiny_llama(seed, torch.float64, **changes)
    return LM(model, tiny_tokenizer(), "tiny", torch.device("cpu"), torch.float64)


def expected(lm, prompt, new, eos=True):
    """Greedy tokens of transformers' generate."""
    ids = torch.tensor([list(prompt)])
    stop = {"eos_token_id": 0} if eos else {"eos_token_id": None}
    out = lm.model.generate(
        ids, max_new_tokens=new, do_sample=False, pad_token_id=0, past_key_values=DynamicCache(), **stop
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("case", range(48))
def test_tokens_are_those_of_generate(case):
    draw = random.Random(case)
    kv_heads = draw.choice((1, 2, 3, 6))
    lm = lm_of(case, num_key_value_heads=kv_heads)
    beginnings = [[draw.randrange(1, 384) for _ in range(draw.randint(5, 40))] for _ in range(2)]
    prompts = []
    for _ in range(draw.randint(2, 7)):
        tail = [draw.randrange(1, 384) for _ in range(draw.randint(1, 25))]
        prompts.append(draw.choice([[], *beginnings]) + tail)
    news, eos = [draw.randint(1, 20) for _ in prompts], draw.random() < 0.5
    wanted = [expected(lm, prompt, new, eos) for prompt, new in zip(prompts, news, strict=True)]
    size = draw.choice((1, 3, 8, 16))
    room = max(len(p) + n for p, n in zip(prompts, news, strict=True))
    blocks = -(-room // size) + draw.randint(1, 12)  # small enough to preempt, large enough for each
    with engine_for(
        lm,
        draw.choice((Continuous(), static(3))),
        blocks=blocks,
        block_size=size,
        rows=draw.randint(1, 5),
        step_tokens=draw.choice((7, 32, 500)),
    ) as engine:
        tickets = []
        for prompt, new in zip(prompts, news, strict=True):
            tickets.append(engine.submit(Request(prompt=prompt, max_tokens=new, ignore_eos=not eos)))
            for _ in range(draw.randint(0, 3)):
                engine.step()
        engine.drain()
        pool = engine.scheduler.tables.pool
        assert engine.idle and pool.used == 0
    assert [ticket.first.tokens for ticket in tickets] == wanted
    assert expected(lm, prompts[0], news[0], eos) == wanted[0]  # the model has its own attention back


def test_a_seeded_draw_does_not_depend_on_the_company():
    lm = lm_of(3)
    asked = [
        Request(prompt=text, max_tokens=12, sampling=Sampling(temperature=0.9, top_p=0.9, seed=n))
        for n, text in enumerate(TEXTS)
    ]
    with engine_for(lm, blocks=60) as engine:
        alone = [engine.run([request])[0].first.tokens for request in asked]
    with engine_for(lm, blocks=60, rows=3, step_tokens=9, share=False) as engine:
        together = [ticket.first.tokens for ticket in engine.run(list(reversed(asked)))]
    assert together[::-1] == alone and len({tuple(tokens) for tokens in alone}) == len(alone)


def test_penalties_hold_across_a_preemption():
    lm = lm_of(4)
    asked = [
        Request(prompt=[n + 1] * 5, max_tokens=14, ignore_eos=True, sampling=Sampling(frequency_penalty=2.0))
        for n in range(4)
    ]
    with engine_for(lm, blocks=60) as engine:
        alone = [engine.run([request])[0].first.tokens for request in asked]
    with engine_for(lm, blocks=9, block_size=4) as engine:
        crowded = engine.run(asked)
    assert [ticket.first.tokens for ticket in crowded] == alone
    assert sum(ticket.preemptions for ticket in crowded) > 0


def test_streamed_pieces_add_up_and_hold_whole_characters():
    lm = lm_of(5)
    with engine_for(lm, blocks=60) as engine:
        pieces = list(engine.stream(Request(prompt="é", max_tokens=40, ignore_eos=True)))
        ticket = pieces[0].ticket
        assert "".join(event.text for event in pieces) == ticket.first.text
        assert ticket.first.text == lm.decode(ticket.first.tokens)
        assert pieces[-1].reason is Reason.LENGTH and len(ticket.first.stamps) == 40
        assert [token for event in pieces for token in event.tokens] == ticket.first.tokens


def test_leaving_a_stream_early_returns_its_blocks():
    lm = lm_of(5)
    with engine_for(lm, blocks=60) as engine:
        for event in engine.stream(Request(prompt="x = ", max_tokens=400)):
            if len(event.ticket.first.tokens) == 3:
                break
        engine.step()
        assert engine.idle and engine.scheduler.tables.pool.used == 0


def test_a_stop_string_ends_a_text_before_itself():
    lm = lm_of(6)
    with engine_for(lm, blocks=60) as engine:
        whole = engine.run([Request(prompt="y", max_tokens=30, ignore_eos=True)])[0].first
        stop = whole.text[9:12]
        cut = engine.run([Request(prompt="y", max_tokens=30, ignore_eos=True, stop=[stop])])[0].first
        assert cut.reason is Reason.STOP and cut.text == whole.text[: whole.text.index(stop)]
        assert len(cut.tokens) < 30 and whole.tokens[: len(cut.tokens)] == cut.tokens


def test_log_probabilities_are_the_models():
    lm = lm_of(7)
    with engine_for(lm, blocks=60) as engine:
        prompt = lm.encode("if a")[0].tolist()
        sample = engine.run([Request(prompt=prompt, max_tokens=3, sampling=Sampling(logprobs=4))])[0].first
    ids = torch.tensor([prompt + sample.tokens])
    wanted = lm.model(ids).logits[0].log_softmax(-1)
    for n, token in enumerate(sample.tokens):
        row = wanted[len(prompt) - 1 + n]
        assert sample.logprobs[n] == pytest.approx(row[token].item(), abs=1e-6)
        best = row.topk(4)
        assert list(sample.top[n]) == best.indices.tolist()
        assert list(sample.top[n].values()) == pytest.approx(best.values.tolist(), abs=1e-6)


def test_logits_that_are_not_numbers_end_their_row_only():
    lm = lm_of(8)
    with torch.no_grad():
        lm.model.model.embed_tokens.weight[9] = float("nan")  # tied: the ninth token's logit, and its input
    lm.model.lm_head.weight = torch.nn.Parameter(lm.model.lm_head.weight.detach().nan_to_num())
    good, bad = Request(prompt=[5, 6], max_tokens=6, ignore_eos=True), Request(prompt=[9, 5], max_tokens=6)
    with engine_for(lm, blocks=60) as engine:
        alone = engine.run([good])[0].first.tokens
        first, second = engine.run([good, bad])
    assert first.first.tokens == alone and first.first.reason is Reason.LENGTH
    assert second.first.reason is Reason.FAILED and "not numbers" in second.first.error


def test_int8_keys_and_values_give_nearly_the_same_logits():
    lm = lm_of(9)
    text = lm.encode(TEXTS[4])[0].tolist()
    asked = Request(prompt=text, max_tokens=4, ignore_eos=True, sampling=Sampling(logprobs=8))
    with engine_for(lm, blocks=60) as engine:
        exact = engine.run([asked])[0].first
    with engine_for(lm, blocks=60, quantised=True, step_tokens=5, rows=5) as engine:
        pieces = engine.run([asked])[0].first
    with engine_for(lm, blocks=60, quantised=True) as engine:
        whole = engine.run([asked])[0].first
    assert pieces.tokens == whole.tokens and pieces.logprobs == pytest.approx(whole.logprobs, abs=1e-9)
    assert whole.logprobs[0] == pytest.approx(exact.logprobs[0], abs=0.2)
    assert whole.logprobs[0] != exact.logprobs[0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"stop": "x"}, "stop is one string"),
        ({"stop": [""]}, "empty string"),
        ({"deadline": 0.0}, "deadline is 0.0"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(change, message):
    with pytest.raises(LabkitError, match=message):
        Request(**{"prompt": "x", **change})


def test_more_tokens_than_positions_are_refused():
    lm = lm_of(1, max_position_embeddings=64)
    with engine_for(lm, blocks=60) as engine:
        with pytest.raises(LabkitError, match="exceed the 64 positions"):
            engine.submit(Request(prompt=[1] * 40, max_tokens=25))
        engine.run([Request(prompt=[1] * 40, max_tokens=24, ignore_eos=True)])
    with pytest.raises(LabkitError, match="closed"):
        engine.submit(Request(prompt="x"))
