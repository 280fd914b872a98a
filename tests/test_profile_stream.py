"""Streaming text shows no half characters, and its pieces add up."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from profile_stand_in import byte_tokenizer

from labkit.profile import StreamDecoder
from labkit.profile.streaming import silent_tokens

TOKENIZER = byte_tokenizer()
HALF = "\ufffd"


def pieces_of(ids):
    stream = StreamDecoder(TOKENIZER)
    return [stream.push(token) for token in ids], stream.flush()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_pieces_are_whole_characters_and_add_up(text):
    ids = TOKENIZER(text)["input_ids"]
    pieces, tail = pieces_of(ids)
    assert "".join(pieces) + tail == text
    if HALF not in text:
        assert HALF not in "".join(pieces) and tail == ""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_add_up_to_the_whole_decode(ids):
    pieces, tail = pieces_of(ids)
    assert "".join(pieces) + tail == TOKENIZER.decode(ids, clean_up_tokenization_spaces=False)
    assert not any(piece.endswith(HALF) for piece in pieces)


def test_a_character_appears_with_its_last_byte():
    ids = TOKENIZER("é😀")["input_ids"]
    assert len(ids) == 6
    assert pieces_of(ids) == (["", "é", "", "", "", "😀"], "")
    assert silent_tokens(TOKENIZER, ids) == 1
    assert silent_tokens(TOKENIZER, ids[:1]) == 0  # nothing will ever show: nothing to wait for


def test_a_text_cut_inside_a_character_is_flushed():
    ids = TOKENIZER("a😀")["input_ids"][:-1]
    assert pieces_of(ids) == (["a", "", "", ""], HALF)


class LeadingSpace:
    """A tokenizer of words that drops the space of the first one, as sentencepiece's do."""

    words = ["▁def", "▁f", "(", "▁x", ")"]

    def decode(self, ids, **_):
        return "".join(self.words[index] for index in ids).replace("▁", " ").lstrip(" ")


def test_spaces_between_words_survive():
    rng = random.Random(7)
    ids = [rng.randrange(5) for _ in range(50)]
    stream = StreamDecoder(LeadingSpace())
    assert "".join(stream.push(token) for token in ids) + stream.flush() == LeadingSpace().decode(ids)
