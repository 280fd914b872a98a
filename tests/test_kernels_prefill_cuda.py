"""The prefill kernel compiled for a GPU: half precision, large shapes, captured graphs. Skipped where there is none."""

import itertools

import pytest
import torch

from labkit.kernels import pages, prefill
from labkit.kernels.prefill_tuning import candidates

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = "cuda"
SHAPES = [  # KV heads, group, head dim, block size
    (8, 1, 128, 16),
    (2, 4, 128, 16),
    (2, 3, 64, 32),
    (2, 8, 256, 16),
    (2, 1, 80, 16),
    (2, 2, 96, 2048),  # a block holds whole tiles
    (1, 20, 128, 7),
]
FEATURES = [
    {},
    {"window": 500},
    {"softcap": 5.0},
    {"quantised": True},
    {"window": 100, "softcap": 5.0, "quantised": True},
]
QUERIES = [1, 0, 700, 129, 1, 64, 300]
LENGTHS = [1500, 90, 700, 2000, 1, 900, 333]
SLACK = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def filled(
    kv_heads, group, dim, block_size, dtype, *, quantised=False, queries=QUERIES, lengths=LENGTHS, padding=70
):
    """Arguments of varlen_attention: shuffled blocks whose unused places are NaN, and NaN queries of nobody."""
    torch.manual_seed(dim + group)
    counts = [max(1, -(-n // block_size)) for n in lengths]
    store = pages.allocate(sum(counts) + 2, block_size, kv_heads, dim, dtype, DEVICE, quantised=quantised)
    for tensor in (store.key_scales, store.value_scales) if quantised else (store.keys, store.values):
        tensor.fill_(torch.nan)
    ids = torch.randperm(sum(counts) + 2, device=DEVICE).int()
    table = ids[-1].repeat(len(lengths), max(counts) + 3)
    for row, (part, n) in enumerate(zip(ids.split([*counts, 2]), lengths, strict=False)):
        table[row, : len(part)] = part
        slots = pages.slots_of(part, torch.arange(n, device=DEVICE), block_size)
        pages.write(store, slots, *(2 * torch.randn(2, n, kv_heads, dim, device=DEVICE, dtype=dtype)))
    query = 2 * torch.randn(sum(queries) + padding, kv_heads * group, dim, device=DEVICE, dtype=dtype)
    query[sum(queries) :] = torch.nan
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32, device=DEVICE)
    return query, store, table, starts, torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def check(out, packed, **options):
    expected = prefill.reference(packed[0].double(), *packed[1:], **options)
    slack = SLACK[out.dtype] * (2 if packed[1].quantised else 1)  # keys and values are rounded once more
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack)
    assert (out[int(packed[3][-1]) :] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_reference_in_fp64(shape, features, dtype):
    options = {"scale": shape[2] ** -0.5, **features}
    packed = filled(*shape, dtype, quantised=options.pop("quantised", False))
    out = torch.full_like(packed[0], torch.nan)
    check(prefill.launch(*packed, **options, out=out), packed, **options)
    assert torch.equal(prefill.varlen_attention(*packed, **options), out)


@pytest.mark.parametrize("shape", [(4, 1, 64, 16), (2, 4, 128, 16), (2, 2, 256, 16)], ids=str)
@pytest.mark.parametrize("quantised", [False, True])
def test_every_candidate_gives_the_same(shape, quantised):
    packed = filled(*shape, torch.bfloat16, quantised=quantised)
    for tuning in candidates(shape[2], shape[1], 1 if quantised else 2):
        for window in (None, 200):
            out = torch.full_like(packed[0], torch.nan)
            check(prefill.launch(*packed, scale=0.09, window=window, tuning=tuning, out=out), packed,
                  scale=0.09, window=window)  # fmt: skip


def test_rows_of_single_tokens_and_a_long_row():
    packed = filled(
        8, 4, 128, 16, torch.bfloat16, queries=[1] * 64, lengths=[2048 - 7 * r for r in range(64)]
    )
    check(prefill.varlen_attention(*packed, scale=0.09), packed, scale=0.09)
    packed = filled(2, 4, 128, 16, torch.bfloat16, queries=[4001], lengths=[8003])
    check(prefill.varlen_attention(*packed, scale=0.09), packed, scale=0.09)


def test_more_than_two_to_the_31_numbers():
    blocks = (1 << 31) // (16 * 32 * 128) + 100
    if torch.cuda.mem_get_info()[0] < 3 * blocks * 16 * 32 * 128 * 2:
        pytest.skip("needs 13 GB of free memory")
    store = pages.allocate(blocks, 16, 32, 128, torch.bfloat16, DEVICE)
    table = torch.arange(blocks - 32, blocks, dtype=torch.int32, device=DEVICE)[None]
    slots = pages.slots_of(table[0], torch.arange(500, device=DEVICE), 16)
    pages.write(store, slots, *torch.randn(2, 500, 32, 128, device=DEVICE, dtype=torch.bfloat16))
    query = torch.randn(300, 32, 128, device=DEVICE, dtype=torch.bfloat16)
    starts, visible = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 300], [500]))
    packed = query, store, table, starts, visible
    check(prefill.varlen_attention(*packed, scale=0.09), packed, scale=0.09)


def test_a_captured_graph_serves_any_cut_into_rows():
    lengths = [3000, 900, 1500, 700, 64]
    query, store, table, _, _ = filled(
        2, 4, 128, 16, torch.bfloat16, queries=[512], lengths=lengths, padding=0
    )
    starts = torch.tensor([0, 512, 512, 512, 512, 512], dtype=torch.int32, device=DEVICE)
    visible = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(query)

    def step():
        prefill.launch(query, store, table, starts, visible, scale=0.09, out=out)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for counts, seen in (
        ([512, 0, 0, 0, 0], [2999, 0, 0, 0, 0]),
        ([1, 1, 1, 1, 1], [3000, 900, 1, 2, 64]),
        ([0, 300, 0, 200, 12], [0, 300, 0, 700, 63]),
        ([0, 0, 0, 0, 0], [5, 4, 3, 2, 1]),
    ):
        starts.copy_(torch.tensor([0, *itertools.accumulate(counts)]))
        visible.copy_(torch.tensor(seen))
        out.fill_(torch.nan)
        graph.replay()
        check(out, (query, store, table, starts, visible), scale=0.09)


def test_the_host_never_waits():
    packed = filled(2, 4, 128, 16, torch.bfloat16)
    prefill.varlen_attention(*packed, scale=0.09)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = prefill.varlen_attention(*packed, scale=0.09)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(out, packed, scale=0.09)
