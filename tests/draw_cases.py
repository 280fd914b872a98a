"""Cases of the drawing kernel, run by test_kernels_draws.py, interpreted or on a GPU."""

import os

import pytest
import torch

from labkit.kernels.draws import WORDS, draw, draw_reference

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def settings(temperatures, seeds):
    """The rows' words, beside numbers that the kernel must not read: NaN."""
    words = torch.full((len(temperatures), WORDS), torch.nan, dtype=torch.float64)
    words[:, 0] = torch.tensor(temperatures, dtype=torch.float64)
    words = words.view(torch.int64)
    words[:, -1] = torch.tensor(seeds)
    return words.to(DEVICE)


def drawn(rows, vocab, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (7 * torch.randn(rows, vocab, generator=generator)).to(dtype)
    table = settings([0.0, 0.7, 1.0, 3.0, 1e-300], [5, -1, 1 << 62, 0, 7])
    slots = torch.randint(0, 5, (rows,), generator=generator)
    index = torch.randint(0, 1 << 40, (rows,), generator=generator)
    return logits.to(DEVICE), table, slots.to(DEVICE), index.to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (23, 1024), (9, 2500), (300, 33)])
def test_the_same_token_as_torch(rows, vocab, dtype):
    given = drawn(rows, vocab, dtype, seed=rows)
    tokens, bad = draw(*given)
    expected, _ = draw_reference(*given)
    assert torch.equal(tokens, expected) and tokens.dtype == torch.int64 and not bad.any()


def test_greedy_rows_take_the_lowest_of_the_largest():
    logits = torch.zeros(2, 3000, device=DEVICE)
    logits[0, [17, 2900]] = 4.0
    table, slots = settings([0.0], [1]), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    assert draw(logits, table, slots, slots)[0].tolist() == [17, 0]


def test_infinities_and_rows_that_are_not_numbers():
    logits = torch.randn(6, 1500, device=DEVICE)
    logits[0], logits[1, 1400], logits[2, 3] = -torch.inf, torch.nan, torch.inf
    logits[3, 1:] = -torch.inf
    table = settings([0.0, 1.0], [1, 2])
    slots, index = torch.tensor([0, 0, 1, 1, 0, 1], device=DEVICE), torch.arange(6, device=DEVICE)
    tokens, bad = draw(logits, table, slots, index)
    assert bad.tolist() == [True, True, False, False, False, False]
    assert tokens[2] == 3 and tokens[3] == 0
    assert torch.equal(tokens[4:], draw_reference(logits[4:], table, slots[4:], index[4:])[0])
    assert ((tokens >= 0) & (tokens < 1500)).all(), (
        "a bad row's token must still be one: the next step may read it"
    )


def test_rows_of_a_larger_tensor_and_none():
    logits, *rest = drawn(8, 50)
    wide = torch.cat([logits, torch.full_like(logits, torch.inf)], 1)[:, :50]
    assert torch.equal(draw(wide, *rest)[0], draw(logits, *rest)[0])
    none = draw(logits[:0], rest[0], rest[1][:0], rest[2][:0])
    assert none[0].shape == none[1].shape == (0,)
