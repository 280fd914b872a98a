"""Measurements of keys and values themselves: how fast a kernel reads them, and into how few bytes they go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.cache.attention import install, remove
from labkit.cache.lossless import compress_block, huffman_codec, lzma_codec, ratio, restore, zlib_codec
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import PagedCache, token_bytes
from labkit.kernels.device import starts_early
from labkit.kernels.paged_decode import decode
from labkit.kernels.pages import Pages, allocate
from labkit.models import LM, load
from labkit.quality import evaluation_text
from labkit.timing import measure

SHAPES = {  # rows, tokens of each, query heads, KV heads
    "MHA, 64 × 2k": (64, 2048, 32, 32),
    "MHA, 1 × 32k": (1, 32_768, 32, 32),
    "GQA, 64 × 2k": (64, 2048, 32, 8),
    "GQA, 1 × 32k": (1, 32_768, 32, 8),
}
DIM, BLOCK = 128, 16
LAYERS = 8
"""Stores that are read in turn, as the layers of a model are, so that none stays in the GPU's cache."""


def kernel_rates(device: torch.device, bandwidth: float) -> list[dict[str, Any]]:
    """Bytes per second at which paged decode attention reads bf16 keys and values of Llama's head dimension.

    Eight stores are read one after the other in one CUDA graph, so that the time is the device's, not Python's.

    Args:
        bandwidth: measured read bandwidth, of which the rate is a share [B/s].
    """
    found = []
    for name, (rows, tokens, heads, kv_heads) in SHAPES.items():
        stores = [_random_store(rows * tokens // BLOCK, kv_heads, device) for _ in range(LAYERS)]
        table = torch.randperm(rows * tokens // BLOCK, device=device, dtype=torch.int32).view(rows, -1)
        visible = torch.full((rows,), tokens, dtype=torch.int32, device=device)
        query = torch.randn(rows, heads, DIM, device=device, dtype=torch.bfloat16)
        timed = measure(_graph(stores, query, table, visible).replay, device=device, warmup=3, repeats=20)
        rate = LAYERS * rows * tokens * 2 * kv_heads * DIM * 2 / timed.median
        found.append({"shape": name, "rate": rate, "share": rate / bandwidth, "runs": timed})
        del stores
        torch.cuda.empty_cache()
    return found


def _random_store(blocks: int, kv_heads: int, device: torch.device) -> Pages:
    pages = allocate(blocks, BLOCK, kv_heads, DIM, torch.bfloat16, device)
    pages.keys.normal_()
    pages.values.normal_()
    return pages


def _graph(stores: list[Pages], query: Tensor, table: Tensor, visible: Tensor) -> torch.cuda.CUDAGraph:
    def once() -> None:
        for pages in stores:
            decode(query, pages, table, visible, scale=DIM**-0.5, pdl=starts_early(query.device))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # the stores and the table are being filled there
    with torch.cuda.stream(side):
        once()  # compiles
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph


@torch.inference_mode()
def compression(tokens: int = 2048) -> dict[str, Any]:
    """What labcoder's keys and values of real text compress to: without loss, and in int8.

    Returns:
        {"lossless": one entry a codec, "int8": bytes, KL divergence [nats a token] and top-1 agreement}
    """
    lm = load("labcoder")
    text = lm.encode(evaluation_text("fixed"))[0].tolist()[:tokens]
    install(lm.model)
    try:
        plain, cache = _logits(lm, text, quantised=False)
        small, _ = _logits(lm, text, quantised=True)
    finally:
        remove(lm.model)
    kl = torch.nn.functional.kl_div(small, plain, reduction="batchmean", log_target=True)
    same = (plain.argmax(-1) == small.argmax(-1)).double().mean()
    return {
        "lossless": _lossless(cache),
        "int8": {
            "model": lm.name,
            "bytes_share": token_bytes(lm, quantised=True) / (token_bytes(lm) * 2 / lm.dtype.itemsize),
            "kl": kl.item(),
            "top1_agreement": same.item(),
        },
    }


def _logits(lm: LM, text: list[int], *, quantised: bool) -> tuple[Tensor, PagedCache]:
    """Log-probabilities at every position, and the cache that they left behind."""
    cache = PagedCache(lm, -(-len(text) // BLOCK), BLOCK, quantised=quantised, share=False)
    cache.open(0, text)
    parts = []
    for start in range(0, len(text), 512):
        piece = text[start : start + 512]
        parts.append(forward(lm, cache.pack([Chunk(0, start, piece, wanted=len(piece))])).log_softmax(-1))
    return torch.cat(parts).double().cpu(), cache


def _lossless(cache: PagedCache) -> list[dict[str, Any]]:
    """Every block of every layer, as bfloat16, through each codec."""
    blocks = [
        block.bfloat16().cpu()
        for pages in cache.layers
        for tensor in (pages.keys, pages.values)
        for block in tensor[1:]  # block 0 is nobody's
    ]
    found = []
    for codec in (zlib_codec(1), huffman_codec(), lzma_codec(0)):
        packed = [compress_block(block, codec) for block in blocks]
        exact = all(
            torch.equal(restore(each).view(torch.int16), block.view(torch.int16))
            for each, block in zip(packed, blocks, strict=True)
        )
        shares = [1 / ratio(each) for each in packed]  # blocks are of one size
        found.append({"codec": codec.name, "ratio": len(shares) / sum(shares), "exact": exact})
    return found
