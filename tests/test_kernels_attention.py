"""Layout, paged store and attention against one-token-at-a-time arithmetic in fp64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_rows import Rows, dequantised

from labkit.errors import LabkitError
from labkit.kernels import attention, pages
from labkit.kernels.layout import Layout

BLOCK_SIZES = (1, 3, 16)
OPTIONS = (
    {"scale": 0.3},
    {"scale": 0.3, "window": 5},
    {"scale": 0.3, "softcap": 2.0},
    {"scale": 0.3, "window": 1},
    {"scale": 0.3, "window": 20, "softcap": 2.0},
)


MIXED = {"decodes": 3, "queries": [1, 1, 1, 7, 1, 20, 4], "lengths": [1, 17, 33, 7, 9, 31, 40]}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("fresh", [False, True])
def test_mixed_rows_equal_plain_attention(options, block_size, fresh):
    rows = Rows(**MIXED, block_size=block_size, seed=block_size)
    kept = {"fresh": rows.fresh} if fresh else {}
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, **options, **kept)
    torch.testing.assert_close(out, rows.expected(**options), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (3, 1), (8, 2)])
@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_groups_of_heads(heads, kv_heads, options):
    rows = Rows(**MIXED, block_size=4, heads=heads, kv_heads=kv_heads, seed=heads)
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, **options)
    torch.testing.assert_close(out, rows.expected(**options), rtol=1e-12, atol=1e-12)


def test_shared_blocks_are_read_by_all():
    rows = Rows(2, [1, 1, 5], [13, 20, 17], 4, share=3)
    assert (rows.table[:, :3] == rows.table[0, :3]).all()
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, scale=0.2)
    torch.testing.assert_close(out, rows.expected(scale=0.2), rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_cut_into_rows(data):
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    decodes = data.draw(st.integers(0, len(lengths)))
    queries = [1 if row < decodes else data.draw(st.integers(1, n)) for row, n in enumerate(lengths)]
    window = data.draw(st.none() | st.integers(1, 50))
    rows = Rows(decodes, queries, lengths, data.draw(st.integers(1, 9)), seed=sum(lengths))
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, scale=0.3, window=window)
    torch.testing.assert_close(out, rows.expected(scale=0.3, window=window), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_quantised_pages_are_read_as_stored_even_where_fresh(options):
    rows = Rows(**MIXED, block_size=3, quantised=True)
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, **options, fresh=rows.fresh)
    stored = rows.expected(**options, stored=True)
    torch.testing.assert_close(out, stored, rtol=1e-6, atol=1e-6)
    assert (out - rows.expected(**options)).abs().max() > 1e-3  # rounding to int8 shows


def test_a_row_of_nothing_gives_zeros_and_a_row_of_nan_stays_alone():
    rows = Rows(4, [1, 1, 1, 0], [9, 1, 30, 0], 4)
    visible = torch.tensor([9, 1, 30, 0], dtype=torch.int32)
    query = torch.cat([rows.query, rows.query[:1]])
    rows.pages.values[rows.table[0, 1].item(), 0] = torch.nan
    for options in OPTIONS[:3]:
        out = attention.paged_decode(query, rows.pages, rows.table, visible, **options)
        assert out[0].isnan().all() if "window" not in options else True
        torch.testing.assert_close(out[1:3], rows.expected(**options)[1:3], rtol=1e-12, atol=1e-12)
        assert (out[3] == 0).all()


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_many_rows_come_back_in_their_order(options):
    lengths = [(37 * row) % 29 + 1 for row in range(3 * attention.DECODE_ROWS + 1)]
    rows = Rows(len(lengths), [1] * len(lengths), lengths, 4)
    out = attention.paged_decode(rows.query, rows.pages, rows.table, rows.layout.visible, **options)
    torch.testing.assert_close(out, rows.expected(**options), rtol=1e-12, atol=1e-12)


def test_packed_rows_without_a_store():
    lengths = [1, 1, 9, 30, 1]
    rows = Rows(2, lengths, lengths, 4)
    layout = Layout(2, tuple(lengths), tuple(lengths))
    for options in OPTIONS:
        out = attention.packed_attention(rows.query, *rows.fresh, layout, **options)
        torch.testing.assert_close(out, rows.expected(**options), rtol=1e-12, atol=1e-12)
    with pytest.raises(LabkitError, match="no store"):
        attention.packed_attention(
            rows.query, *rows.fresh, Layout(2, tuple(lengths), (1, 2, 9, 30, 1)), scale=1
        )


@pytest.mark.parametrize("tile", [1, 7, 256])
def test_soft_cap_in_tiles_is_soft_cap_at_once(tile, monkeypatch):
    monkeypatch.setattr(attention, "QUERY_TILE", tile)
    rows = Rows(0, [20, 4], [31, 4], 5)
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, scale=0.5, softcap=3.0, window=9)
    torch.testing.assert_close(out, rows.expected(0.5, 9, 3.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_dtypes_stay_close(dtype):
    rows = Rows(**MIXED, block_size=4, dtype=dtype)
    out = attention.paged_attention(rows.query, rows.pages, rows.layout, scale=0.2)
    assert out.dtype == dtype
    rows.query = rows.query.double()
    rows.keys, rows.values = [k.double() for k in rows.keys], [v.double() for v in rows.values]
    slack = 8 * torch.finfo(dtype).eps * 9  # values reach about 9
    torch.testing.assert_close(out.double(), rows.expected(scale=0.2), rtol=0, atol=slack)


@given(st.integers(1, 7), st.integers(0, 60), st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_gathered(block_size, length, quantised, seed):
    torch.manual_seed(seed)
    blocks = 64 // block_size + 2
    store = pages.allocate(blocks, block_size, 3, 5, torch.float64, "cpu", quantised=quantised)
    table = torch.randperm(blocks)[: max(1, -(-length // block_size))]
    slots = pages.slots_of(table, torch.arange(length), block_size)
    keys, values = torch.randn(2, length, 3, 5, dtype=torch.float64) * 100
    order = torch.randperm(length)
    pages.write(store, slots[order], keys[order], values[order])
    for found, wanted in zip(pages.gather(store, table, length, torch.float64), (keys, values), strict=True):
        assert found.shape == (length, 3, 5) and found.dtype == torch.float64
        if quantised:
            step = wanted.abs().amax(-1, keepdim=True) / 127
            assert ((found - wanted).abs() <= step * 0.5001).all()
            torch.testing.assert_close(found, dequantised(wanted), rtol=1e-6, atol=0)
        else:
            assert torch.equal(found, wanted)


def test_int8_of_zeros_outliers_and_what_is_not_finite():
    x = torch.tensor(
        [[0.0, 0.0], [1e-42, -1e-42], [1.0, 1e4], [torch.inf, 1.0], [torch.nan, 1.0], [-5.0, 5.0]]
    )
    steps, scale = pages.quantise(x)
    found = steps.float() * scale[:, None]
    assert (found[0] == 0).all() and found[1].isfinite().all()
    assert found[2].tolist() == [0.0, pytest.approx(1e4)]
    assert found[3].isnan().all() and found[4].isnan().all()  # a fault stays visible
    assert steps[5].tolist() == [-127, 127]


@pytest.mark.parametrize("quantised", [False, True])
def test_copied_blocks_are_equal_and_apart(quantised):
    store = pages.allocate(6, 4, 2, 3, torch.float32, "cpu", quantised=quantised)
    pages.write(store, torch.arange(24), torch.randn(24, 2, 3), torch.randn(24, 2, 3))
    before = pages.gather(store, torch.tensor([1, 2]), 8, torch.float32)
    pages.copy_blocks(store, torch.tensor([1, 2]), torch.tensor([5, 0]))
    after = pages.gather(store, torch.tensor([5, 0]), 8, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    pages.write(store, torch.arange(4), torch.ones(4, 2, 3), torch.ones(4, 2, 3))
    again = pages.gather(store, torch.tensor([1, 2]), 8, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(before, again, strict=True))


@pytest.mark.parametrize(
    ("decodes", "queries", "lengths"),
    [(1, (2,), (4,)), (0, (5,), (4,)), (0, (0,), (4,)), (2, (1,), (1,)), (0, (1, 1), (1,))],
)
def test_impossible_layouts_are_refused(decodes, queries, lengths):
    with pytest.raises(LabkitError):
        Layout(decodes, queries, lengths)


def test_a_layout_has_all_of_its_tensors_or_none():
    with pytest.raises(LabkitError, match="only some"):
        Layout(0, (1,), (1,), slots=torch.zeros(1, dtype=torch.long))
    layout = Layout(1, (1, 4, 2), (3, 4, 9))
    assert layout.tokens == 7 and not layout.stored
    assert list(layout.chunks()) == [(1, 1, 4, 4), (2, 5, 2, 9)]
