"""Text of a growing sample: pieces add up, nothing of a stop string is ever shown, guesses change nothing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_llama, tiny_tokenizer

from labkit.batch import Request, engine_for
from labkit.batch.proposer import accepted
from labkit.batch.text import TextStream
from labkit.models import LM

LETTERS = "ab\n é"


class Spelling:
    """A tokenizer of one byte a token, so that characters and stop strings span tokens."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")


@settings(max_examples=300, deadline=None)
@given(st.text(LETTERS, max_size=25), st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_stop_string(text, stops):
    stream, pieces = TextStream(Spelling(), stops), []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        assert "\ufffd" not in pieces[-1]
        shown = "".join(pieces)
        assert not any(stop in shown for stop in stops)
        if stream.stopped:
            break
    pieces.append(stream.finish())
    shown = "".join(pieces)
    # the stop string that is complete first ends the text; of two that end together, the one that begins first
    ends = sorted((text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text)
    assert shown == (text[: ends[0][1]] if ends else text)
    assert stream.stopped == bool(ends)
    assert stream.push(97) == "" or not stream.stopped


def test_without_a_tokenizer_there_is_no_text():
    stream = TextStream(None)
    assert stream.push(3) == "" and stream.finish() == "" and not stream.stopped


def test_guesses_are_kept_up_to_the_first_wrong_one():
    assert accepted([5, 6, 7], [5, 6]) == [5, 6, 7]
    assert accepted([5, 6, 7], [5, 9]) == [5, 6]
    assert accepted([5, 6, 7], [9, 6]) == [5]
    assert accepted([5], []) == [5]


class PromptLookup:
    """Guesses what followed the last time the same token was there."""

    def __init__(self):
        self.asked = 0

    def propose(self, tokens, most):
        self.asked += 1
        earlier = [n for n in range(len(tokens) - 1) if tokens[n] == tokens[-1]]
        return tokens[earlier[-1] + 1 : earlier[-1] + 1 + most] if earlier else ()


def test_guesses_change_how_fast_not_what():
    lm = LM(tiny_llama(3, torch.float64), tiny_tokenizer(), "tiny", torch.device("cpu"), torch.float64)
    asked = [Request(prompt=[n, 9, n, 9, n], max_tokens=60, ignore_eos=True) for n in (3, 4, 5)]
    with engine_for(lm, blocks=60) as engine:
        plain = [ticket.first.tokens for ticket in engine.run(asked)]
        steps = engine.metrics.count
    proposer = PromptLookup()
    with engine_for(lm, blocks=60, proposer=proposer, guesses=3) as engine:
        guessed = [ticket.first.tokens for ticket in engine.run(asked)]
        assert engine.scheduler.tables.pool.used == 0
        assert proposer.asked > 0 and engine.metrics.count < steps
    assert guessed == plain
