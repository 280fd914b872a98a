"""Cases of the Triton kernels, run by test_kernels_decode.py in a process with TRITON_INTERPRET=1."""

import os

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_kernels_decode.py"

import pytest  # noqa: E402
import torch  # noqa: E402
from paged_rows import Rows  # noqa: E402

from labkit.errors import LabkitError  # noqa: E402
from labkit.kernels import attention, paged_decode  # noqa: E402
from labkit.kernels.paged_decode import Tuning  # noqa: E402

LENGTHS = [1, 145, 17, 64, 300]
SHAPES = [  # KV heads, group, head dim, block size, tuning
    (2, 1, 64, 16, Tuning(16, 4, 1, False)),
    (2, 1, 128, 32, Tuning(32, 4, 3, True)),
    (2, 3, 128, 16, None),
    (1, 4, 256, 32, None),
    (2, 8, 64, 16, Tuning(128, 4, 3, True)),
    (1, 1, 256, 16, None),
    (3, 3, 40, 5, None),  # dimensions and blocks that are no power of 2
    (1, 20, 64, 1, None),
]
FEATURES = [
    {},
    {"window": 37, "softcap": 3.0},
    {"quantised": True},
    {"window": 130, "softcap": 1.5, "quantised": True},
]


def poisoned(rows, shares):
    """Output and scratch full of NaN, with a row of no tokens added at the end of the pack."""
    heads, dim = rows.query.shape[1:]
    count = len(rows.query) + 1
    query = torch.cat([rows.query, rows.query[:1]])
    table = torch.cat([rows.table, rows.table[:1]])
    visible = torch.cat([rows.layout.visible, torch.zeros(1, dtype=torch.int32)])
    scratch = torch.full((paged_decode.scratch_numbers(count, heads, dim, shares) + 7,), torch.nan)
    return (query, rows.pages, table, visible), {
        "shares": shares,
        "scratch": scratch,
        "out": torch.full(query.shape, torch.nan, dtype=query.dtype),
    }


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_reference_in_fp64(shape, features):
    kv_heads, group, dim, block_size, tuning = shape
    options = {"scale": 0.5 * dim**-0.5, **features}
    quantised = options.pop("quantised", False)
    rows = Rows(5, [1] * 5, LENGTHS, block_size, heads=kv_heads * group, kv_heads=kv_heads, dim=dim, seed=dim + group,
                quantised=quantised, dtype=torch.float32)  # fmt: skip
    shares = 1 + (group + len(features)) % 3
    arguments, places = poisoned(rows, shares)
    out = paged_decode.launch(*arguments, **options, **places, tuning=tuning)
    assert out is places["out"]
    expected = attention.paged_decode(arguments[0].double(), *arguments[1:], **options)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)
    assert (out[-1] == 0).all()
    counters = torch.zeros(6 * kv_heads, dtype=torch.int32)
    arguments, places = poisoned(rows, shares)
    for _ in range(2):  # the counters are as they were
        counted = paged_decode.launch(*arguments, **options, **places, tuning=tuning, counters=counters)
        assert torch.equal(counted, out) and not counters.any()


def test_counters_serve_where_they_are_enough_and_shares_are_few(monkeypatch):
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=torch.float32)
    arguments = (rows.query, rows.pages, rows.table, rows.layout.visible)
    seen, attend = [], paged_decode._attend
    monkeypatch.setattr(paged_decode, "_attend", lambda *given: (seen.append(given[7]), attend(*given)))
    enough, many = torch.zeros(10, dtype=torch.int32), paged_decode.MOST_COUNTED // 64
    for counters, shares in (
        (enough, 2),
        (enough[:9], 2),
        (None, 2),
        (enough, 1),
        (enough, many),
        (enough, many + 1),
    ):
        paged_decode.launch(*arguments, scale=0.1, shares=shares, counters=counters)
    assert [each is enough for each in seen] == [True, False, False, False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quantised", [False, True])
def test_half_precision(dtype, quantised):
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=dtype, quantised=quantised)
    arguments, places = poisoned(rows, 2)
    out = paged_decode.launch(*arguments, scale=0.05, **places)
    expected = attention.paged_decode(arguments[0].double(), *arguments[1:], scale=0.05)
    assert out.dtype == dtype
    slack = 10 * torch.finfo(dtype).eps  # values reach about 10, the interpreter cuts bf16 off
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=slack)


def test_a_row_gives_the_same_bits_in_any_company():
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=torch.float32)
    visible = rows.layout.visible
    together = paged_decode.launch(rows.query, rows.pages, rows.table, visible, scale=0.1, shares=3)
    again = paged_decode.launch(rows.query, rows.pages, rows.table, visible, scale=0.1, shares=3)
    assert torch.equal(together, again)
    for row in range(5):
        one = slice(row, row + 1)
        table = torch.nn.functional.pad(rows.table[one], (0, 4))  # a wider table changes nothing either
        alone = paged_decode.launch(rows.query[one], rows.pages, table, visible[one], scale=0.1, shares=3)
        assert torch.equal(alone, together[one])


def test_lengths_may_be_a_column_of_a_table():
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=torch.float32)
    given, visible = (rows.query, rows.pages, rows.table), rows.layout.visible
    column = torch.stack((visible, torch.full_like(visible, 3)), 1)[:, 0]
    for shares in (1, 3):
        wanted = paged_decode.launch(*given, visible, scale=0.1, shares=shares)
        assert torch.equal(paged_decode.launch(*given, column, scale=0.1, shares=shares), wanted)


def test_a_nan_stays_in_its_row():
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=torch.float32)
    rows.pages.keys[rows.table[1, 2].item(), 3, 0] = torch.nan
    for shares in (1, 3):
        out = paged_decode.launch(
            rows.query, rows.pages, rows.table, rows.layout.visible, scale=0.1, shares=shares
        )
        assert out[1, :3].isnan().all() and out[1, 3:].isfinite().all()
        assert out[[0, 2, 3, 4]].isfinite().all()


def test_queries_may_lie_in_any_order_and_large_scores_do_not_overflow():
    rows = Rows(5, [1] * 5, LENGTHS, 16, heads=6, kv_heads=2, dim=64, dtype=torch.float32)
    query = (50 * rows.query).transpose(0, 1).contiguous().transpose(0, 1)  # as rotary embeddings leave it
    out = paged_decode.launch(query, rows.pages, rows.table, rows.layout.visible, scale=1.0, shares=2)
    expected = attention.paged_decode(query.double(), rows.pages, rows.table, rows.layout.visible, scale=1.0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)


def test_what_cannot_be_is_refused():
    rows = Rows(1, [1], [40], 16, heads=6, kv_heads=4, dim=64, dtype=torch.float32)
    arguments = (rows.pages, rows.table, rows.layout.visible)
    with pytest.raises(LabkitError, match="evenly"):
        paged_decode.launch(rows.query, *arguments, scale=1.0)
    with pytest.raises(LabkitError, match="Scratch"):
        paged_decode.launch(rows.query[:, :4], *arguments, scale=1.0, shares=2, scratch=torch.empty(3))
    assert paged_decode.launch(rows.query[:0, :4], *arguments, scale=1.0).shape == (0, 4, 64)
