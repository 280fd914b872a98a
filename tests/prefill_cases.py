"""Cases of the prefill kernel, run by test_kernels_prefill.py in a process with TRITON_INTERPRET=1."""

import os

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_kernels_prefill.py"

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from paged_rows import Rows  # noqa: E402
from prefill_rows import arguments  # noqa: E402

from labkit.errors import LabkitError  # noqa: E402
from labkit.kernels import prefill  # noqa: E402
from labkit.kernels.prefill_tuning import Tuning  # noqa: E402

QUERIES = [1, 0, 37, 7, 0, 21]
LENGTHS = [67, 40, 37, 48, 0, 75]
SHAPES = [  # KV heads, group, head dim, block size, tuning
    (2, 1, 64, 16, Tuning(64, 32, 4, 3)),
    (1, 3, 80, 5, Tuning(32, 16, 4, 2)),  # dimensions, blocks and groups that are no power of 2
    (1, 4, 128, 32, None),
    (1, 2, 96, 64, Tuning(16, 32, 4, 2)),  # a block holds whole tiles
    (1, 2, 256, 16, None),
    (1, 20, 16, 1, Tuning(128, 32, 4, 2)),
]
FEATURES = [
    {},
    {"window": 21},
    {"softcap": 3.0},
    {"quantised": True},
    {"window": 40, "softcap": 1.5, "quantised": True},
]
TILES = Tuning(16, 16, 4, 1)


def run(given, **options):
    """The kernel into an output full of NaN."""
    out = torch.full(given[0].shape, torch.nan, dtype=given[0].dtype)
    assert prefill.launch(*given, out=out, **options) is out
    return out


def rows(kv_heads=2, group=3, dim=16, block_size=16, *, queries=QUERIES, lengths=LENGTHS, **kept):
    kept = {"dtype": torch.float32, **kept}
    return Rows(0, queries, lengths, block_size, heads=kv_heads * group, kv_heads=kv_heads, dim=dim, **kept)


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_reference_in_fp64(shape, features):
    *sizes, tuning = shape
    options = {"scale": 0.4 * sizes[2] ** -0.5, **features}
    some = rows(*sizes, seed=sizes[2], quantised=options.pop("quantised", False))
    packed = arguments(some, padding=9)
    out = run(packed, **options, tuning=tuning)
    expected = prefill.reference(packed[0].double(), *packed[1:], **options)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)
    assert (out[len(some.query) :] == 0).all() and (out[: len(some.query)] != 0).any(-1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quantised", [False, True])
def test_half_precision(dtype, quantised):
    packed = arguments(rows(2, 3, 64, dtype=dtype, quantised=quantised), padding=3)
    out = run(packed, scale=0.05)
    expected = prefill.reference(packed[0].double(), *packed[1:], scale=0.05)
    assert out.dtype == dtype
    slack = 10 * torch.finfo(dtype).eps  # values reach about 10, the interpreter cuts bf16 off
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=slack)


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_any_cut_into_rows(data):
    lengths = [1, *data.draw(st.lists(st.integers(0, 50), max_size=4)), 0]
    queries = [1, *(data.draw(st.integers(0, n)) for n in lengths[1:])]
    window = data.draw(st.none() | st.integers(1, 60))
    group, block_size = data.draw(st.sampled_from([1, 3, 4])), data.draw(st.sampled_from([4, 7, 16, 48]))
    some = rows(1, group, 16, block_size, queries=queries, lengths=lengths, seed=sum(lengths))
    packed = arguments(some, padding=data.draw(st.integers(0, 20)))
    out = run(packed, scale=0.1, window=window, tuning=TILES)
    expected = prefill.reference(packed[0].double(), *packed[1:], scale=0.1, window=window)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_windows_that_end_at_every_place_of_a_tile():
    packed = arguments(rows(1, 1, queries=[20], lengths=[60]))
    for window in range(30, 48):
        out = run(packed, scale=0.1, window=window, tuning=TILES)
        expected = prefill.reference(packed[0].double(), *packed[1:], scale=0.1, window=window)
        torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_every_tuning_gives_the_same():
    packed = arguments(rows(1, 2), padding=5)
    expected = prefill.reference(packed[0].double(), *packed[1:], scale=0.1, window=40)
    for tile_q in (16, 64, 128):
        for tile_k in (16, 128):
            out = run(packed, scale=0.1, window=40, tuning=Tuning(tile_q, tile_k, 4, 2))
            torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_company_changes_no_bit():
    query, store, table, starts, visible = arguments(rows(1))
    together = run((query, store, table, starts, visible), scale=0.1, tuning=TILES)
    more = torch.cat([starts, starts[-1:].repeat(90)])  # an upper bound of rows, as in a captured graph
    table_of_more, length_of_more = table[0].repeat(90, 1), visible[:1].repeat(90)
    padded = (query, store, torch.cat([table, table_of_more]), more, torch.cat([visible, length_of_more]))
    assert torch.equal(run(padded, scale=0.1, tuning=TILES), together)
    for row, count in enumerate(QUERIES):
        if count:
            mine, one = slice(int(starts[row]), int(starts[row + 1])), slice(row, row + 1)
            alone = (query[mine], store, table[one], torch.tensor([0, count]).int(), visible[one])
            assert torch.equal(run(alone, scale=0.1, tuning=TILES), together[mine])


def test_only_the_first_rows_are_taken_where_asked():
    packed = arguments(rows(), padding=4)
    out = run(packed, scale=0.1, rows=3)
    stop = int(packed[3][3])
    assert torch.equal(out[:stop], run(packed, scale=0.1, tuning=None)[:stop]) and (out[stop:] == 0).all()


def test_queries_without_a_key_give_zeros():
    some = rows()
    query, store, table, starts, visible = arguments(some)
    short = visible.clone()
    short[2], short[5] = 13, 0  # of 37 and 21 queries
    out = run((query, store, table, starts, short), scale=0.1, tuning=TILES)
    first, end = int(starts[2]), int(starts[3])
    assert (out[first : end - 13] == 0).all() and (out[int(starts[5]) :] == 0).all()
    seen = (query[end - 13 : end], store, table[2:3], torch.tensor([0, 13]).int(), short[2:3])
    torch.testing.assert_close(out[end - 13 : end].double(), prefill.reference(seen[0].double(), *seen[1:], scale=0.1),
                               rtol=2e-5, atol=2e-5)  # fmt: skip


@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_nan_stays_in_its_row_and_is_seen_there(part):
    some = rows()
    packed = arguments(some)
    getattr(some.pages, part)[some.table[2, 1].item(), 3, 0] = torch.nan  # position 19 of 37, first KV head
    out = run(packed, scale=0.1, tuning=TILES)
    first, end = int(packed[3][2]), int(packed[3][3])
    assert out[first + 19 : end, :3].isnan().any(-1).all() and out[first:end, 3:].isfinite().all()
    assert out[:first].isfinite().all() and out[end:].isfinite().all()
    assert (
        out[first : first + 15].isfinite().all()
    )  # tiles of earlier queries (weights of 0 times NaN are NaN)


@pytest.mark.parametrize("block_size", [5, 16, 32])
@pytest.mark.parametrize("quantised", [False, True])
def test_what_a_window_has_left_behind_is_never_read(block_size, quantised):
    """Every slot that no query of the chunk sees is NaN, and its block may belong to someone else."""
    some = rows(1, 2, queries=[10], lengths=[101], block_size=block_size, quantised=quantised)
    packed = arguments(some)
    expected = prefill.reference(packed[0].double(), *packed[1:], scale=0.1, window=30)
    for position in range(101 - 10 - 30 + 1):
        place = some.table[0, position // block_size].item(), position % block_size
        for tensor in (some.pages.key_scales, some.pages.value_scales) if quantised else (
            some.pages.keys, some.pages.values):  # fmt: skip
            tensor[place] = torch.nan
    out = run(packed, scale=0.1, window=30, tuning=TILES)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_starts_and_lengths_may_be_columns_of_a_table():
    packed = arguments(rows())
    columns = [torch.stack((each, torch.full_like(each, 3)), 1)[:, 0] for each in packed[3:]]
    assert torch.equal(run((*packed[:3], *columns), scale=0.1), run(packed, scale=0.1))


def test_large_scores_do_not_overflow_and_a_view_of_merged_projections_is_read_in_place():
    some = rows(2, 3, 64)
    packed = arguments(some)
    merged = torch.full((len(some.query), 10, 64), torch.nan)
    merged[:, :6] = 50 * packed[0]
    out = run((merged[:, :6], *packed[1:]), scale=1.0)
    expected = prefill.reference(50 * packed[0].double(), *packed[1:], scale=1.0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)
    low = packed[0] * 0 - 1e4
    some.pages.keys[:] = 1e4 * some.pages.keys.abs()  # every score is near -1e10
    out = run((low, *packed[1:]), scale=1.0)
    assert out.isfinite().all() and (out != 0).any(-1).all()


def test_what_cannot_be_is_refused():
    packed = arguments(rows(1, 20))
    with pytest.raises(LabkitError, match="evenly"):
        prefill.launch(packed[0], arguments(rows(3, 1))[1], *packed[2:], scale=1.0)
    with pytest.raises(LabkitError, match="group"):
        prefill.launch(*packed, scale=1.0, tuning=TILES)
    with pytest.raises(LabkitError, match="positive"):
        prefill.launch(*packed, scale=-1.0)
    assert prefill.launch(packed[0][:0], *packed[1:], scale=1.0).shape == (0, 20, 16)
