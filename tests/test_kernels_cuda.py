"""Attention compiled for a GPU: half precision, large shapes, captured graphs. Skipped where there is none."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.cache.attention import install, remove
from labkit.cache.pack import View
from labkit.kernels import attention, paged_decode, pages
from labkit.kernels.layout import Layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = "cuda"
SHAPES = [  # KV heads, group, head dim, block size
    (32, 1, 128, 16),
    (8, 4, 128, 16),
    (2, 3, 64, 32),
    (4, 8, 256, 16),
    (2, 1, 96, 16),
    (1, 16, 128, 7),
]
FEATURES = [
    {},
    {"window": 500},
    {"softcap": 5.0},
    {"quantised": True},
    {"window": 100, "softcap": 5.0, "quantised": True},
]


def filled(lengths, kv_heads, group, dim, block_size, dtype, *, quantised=False, seed=0, extra=3):
    """Rows of random keys and values in shuffled blocks whose unused places are NaN."""
    torch.manual_seed(seed)
    counts = [max(1, -(-n // block_size)) for n in lengths]
    store = pages.allocate(sum(counts) + 2, block_size, kv_heads, dim, dtype, DEVICE, quantised=quantised)
    if quantised:
        store.key_scales.fill_(torch.nan), store.value_scales.fill_(torch.nan)
    else:
        store.keys.fill_(torch.nan), store.values.fill_(torch.nan)
    ids = torch.randperm(sum(counts) + 2, device=DEVICE).int()
    table = ids[-1].repeat(len(lengths), max(counts) + extra)
    for row, (part, n) in enumerate(zip(ids.split([*counts, 2]), lengths, strict=False)):
        table[row, : len(part)] = part
        slots = pages.slots_of(part, torch.arange(n, device=DEVICE), block_size)
        keys, values = 2 * torch.randn(2, n, kv_heads, dim, device=DEVICE, dtype=dtype)
        pages.write(store, slots, keys, values)
    query = 2 * torch.randn(len(lengths), kv_heads * group, dim, device=DEVICE, dtype=dtype)
    return query, store, table, torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def close(out, expected, dtype):
    slack = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    torch.testing.assert_close(out.double(), expected.double(), rtol=slack, atol=slack)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_equals_the_reference_in_fp64(shape, features, dtype):
    options = {"scale": shape[2] ** -0.5, **features}
    quantised = options.pop("quantised", False)
    arguments = filled([1, 0, 3000, 17, 1024, 777, 2], *shape, dtype, quantised=quantised)
    expected = attention.paged_decode(arguments[0].double(), *arguments[1:], **options)
    heads, dim = arguments[0].shape[1:]
    for shares in (None, 1, 7):
        count = paged_decode.scratch_numbers(7, heads, dim, shares or paged_decode.MOST_SHARES)
        out = paged_decode.launch(
            *arguments, **options, shares=shares, out=torch.full_like(arguments[0], torch.nan),
            scratch=torch.full((count + 1,), torch.nan, device=DEVICE),
        )  # fmt: skip
        close(out, expected, dtype)
        assert (out[1] == 0).all()
    assert torch.equal(paged_decode.decode(*arguments, **options), paged_decode.launch(*arguments, **options))
    counters = torch.zeros(7 * heads, dtype=torch.int32, device=DEVICE)
    counted = [
        paged_decode.launch(
            *arguments, **options, shares=7, counters=counters, out=torch.full_like(out, torch.nan)
        )
        for _ in range(3)
    ]
    close(counted[0], expected, dtype)
    assert all(torch.equal(counted[0], each) for each in counted)  # whichever program comes last
    assert not counters.any()


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(("tile", "warps", "stages"), [(32, 4, 1), (64, 4, 3), (64, 8, 2), (128, 8, 3)])
def test_every_tuning_gives_the_same(dot, tile, warps, stages):
    arguments = filled([1, 3000, 517], 8, 1, 128, 16, torch.bfloat16)
    expected = attention.paged_decode(arguments[0].double(), *arguments[1:], scale=0.09)
    tuning = paged_decode.Tuning(tile, warps, stages, dot)
    for _ in range(3):
        close(paged_decode.launch(*arguments, scale=0.09, tuning=tuning), expected, torch.bfloat16)


def test_large_batch_and_long_context():
    for lengths in ([2048 - 7 * row for row in range(64)], [32768]):
        arguments = filled(lengths, 8, 4, 128, 16, torch.bfloat16)
        expected = attention.paged_decode(arguments[0].float(), *arguments[1:], scale=0.09)
        close(paged_decode.decode(*arguments, scale=0.09), expected, torch.bfloat16)


def test_more_than_two_to_the_31_numbers():
    blocks = (1 << 31) // (16 * 32 * 128) + 100
    if torch.cuda.mem_get_info()[0] < 3 * blocks * 16 * 32 * 128 * 2:
        pytest.skip("needs 13 GB of free memory")
    store = pages.allocate(blocks, 16, 32, 128, torch.bfloat16, DEVICE)
    table = torch.arange(blocks - 8, blocks, dtype=torch.int32, device=DEVICE)[None]
    slots = pages.slots_of(table[0], torch.arange(120, device=DEVICE), 16)
    pages.write(store, slots, *torch.randn(2, 120, 32, 128, device=DEVICE, dtype=torch.bfloat16))
    query = torch.randn(1, 32, 128, device=DEVICE, dtype=torch.bfloat16)
    visible = torch.tensor([120], dtype=torch.int32, device=DEVICE)
    expected = attention.paged_decode(query.float(), store, table, visible, scale=0.09)
    close(paged_decode.decode(query, store, table, visible, scale=0.09), expected, torch.bfloat16)


def test_a_captured_graph_follows_growing_rows():
    query, store, table, _ = filled([3000, 900, 1500], 8, 4, 128, 16, torch.bfloat16)
    visible = torch.tensor([100, 1, 1], dtype=torch.int32, device=DEVICE)
    shares = paged_decode.choose_shares(3 * 8, table.shape[1] * 16, 132)
    scratch = torch.empty(paged_decode.scratch_numbers(3, 32, 128, shares), device=DEVICE)
    out = torch.empty_like(query)

    def step():
        paged_decode.launch(query, store, table, visible, scale=0.09, shares=shares, scratch=scratch, out=out)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ([100, 1, 1], [101, 2, 900], [3000, 900, 1500], [5, 0, 1400]):
        visible.copy_(torch.tensor(lengths))
        out.fill_(torch.nan)
        graph.replay()
        close(out, attention.paged_decode(query.double(), store, table, visible, scale=0.09), torch.bfloat16)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize(("queries", "length"), [(512, 512), (100, 1000), (1, 700)])
def test_chunks_reach_flash_attention(group, queries, length):
    query = torch.randn(queries, 8 * group, 128, device=DEVICE, dtype=torch.bfloat16)
    keys, values = torch.randn(2, length, 8, 128, device=DEVICE, dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises where that kernel does not take the call
        out = attention.chunk_attention(query, keys, values, scale=0.09)
    expected = attention.chunk_attention(
        query.double().cpu(), keys.double().cpu(), values.double().cpu(), scale=0.09
    )
    close(out.cpu(), expected, torch.bfloat16)


@pytest.mark.parametrize(
    "options", [{"window": 50}, {"softcap": 5.0}, {"window": 300, "softcap": 5.0}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_chunks_with_window_and_soft_cap(options, dtype):
    query = torch.randn(333, 8, 64, device=DEVICE, dtype=dtype)
    keys, values = torch.randn(2, 700, 2, 64, device=DEVICE, dtype=dtype)
    out = attention.chunk_attention(query, keys, values, scale=0.2, **options)
    expected = attention.chunk_attention(
        *(x.double().cpu() for x in (query, keys, values)), scale=0.2, **options
    )
    close(out.cpu(), expected, dtype)


@pytest.mark.parametrize("quantised", [False, True])
def test_a_model_steps_without_waiting_for_the_host(quantised):
    """Chunks and decodes of a bf16 Llama; a step that read a tensor on the host would raise."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, hidden_size=256, intermediate_size=256, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=64)  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    layers = [pages.allocate(40, 16, 2, 64, torch.bfloat16, DEVICE, quantised=quantised) for _ in range(2)]
    table = torch.randperm(40, device=DEVICE)[:36].view(3, 12).int()
    ids = torch.randint(0, 128, (3, 150), device=DEVICE)

    def step(starts, stops):
        parts = [torch.arange(a, b, device=DEVICE) for a, b in zip(starts, stops, strict=True)]
        slots = torch.cat([pages.slots_of(table[row], part, 16) for row, part in enumerate(parts)])
        queries = tuple(b - a for a, b in zip(starts, stops, strict=True))
        visible = torch.tensor(stops, dtype=torch.int32, device=DEVICE)
        layout = Layout(sum(count == 1 for count in queries), queries, tuple(stops), slots, table, visible)
        tokens = torch.cat([ids[row, a:b] for row, (a, b) in enumerate(zip(starts, stops, strict=True))])
        positions = torch.cat(parts)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return model(input_ids=tokens[None], position_ids=positions[None], use_cache=False,
                         kv=View(layout, layers)).logits[0]  # fmt: skip
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits
        install(model)
        step((0, 0, 0), (99, 100, 60))
        step((99, 100, 60), (100, 101, 100))
        last = step((100, 101, 100), (101, 102, 150))
        remove(model)
    slack = 0.15 if quantised else 0.03
    for found, expected in ((last[0], wanted[0, 100]), (last[1], wanted[1, 101]), (last[-1], wanted[2, 149])):
        assert (found - expected).abs().max() < slack * wanted.abs().max()
