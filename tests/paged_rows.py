"""Random rows in a paged store, with what attention over them must give, token by token."""

import math
import random

import torch

from labkit.kernels import pages
from labkit.kernels.layout import Layout


class Rows:
    """Random rows in a paged store whose every unused slot is NaN, and their keys and values in plain order."""

    def __init__(self, decodes, queries, lengths, block_size, *, heads=6, kv_heads=2, dim=8, seed=0, share=0,
                 quantised=False, dtype=torch.float64):  # fmt: skip
        torch.manual_seed(seed)
        shuffle = random.Random(seed)
        counts = [max(1, math.ceil(n / block_size)) for n in lengths]
        ids = list(range(sum(counts) + 3))
        shuffle.shuffle(ids)
        self.keys = [3 * torch.randn(n, kv_heads, dim, dtype=dtype) for n in lengths]
        self.values = [3 * torch.randn(n, kv_heads, dim, dtype=dtype) for n in lengths]
        tables = [[ids.pop() for _ in range(count)] for count in counts]
        if share:  # all rows start with the first `share` blocks of row 0
            for row in range(1, len(lengths)):
                tables[row][:share] = tables[0][:share]
                for own in (self.keys, self.values):
                    own[row][: share * block_size] = own[0][: share * block_size]
        self.pages = pages.allocate(
            sum(counts) + 3, block_size, kv_heads, dim, dtype, "cpu", quantised=quantised
        )
        for tensor in (self.pages.key_scales, self.pages.value_scales) if quantised else (
            self.pages.keys, self.pages.values):  # fmt: skip
            tensor.fill_(torch.nan)
        width = max(counts) + 2
        self.table = torch.tensor([row + [ids[0]] * (width - len(row)) for row in tables], dtype=torch.int32)
        fresh = [(row, n - count + i) for row, (count, n) in enumerate(zip(queries, lengths, strict=True))
                 for i in range(count)]  # fmt: skip
        slot = [[tables[row][p // block_size] * block_size + p % block_size for p in range(n)]
                for row, n in enumerate(lengths)]  # fmt: skip
        for row, n in enumerate(lengths):
            if n:
                pages.write(self.pages, torch.tensor(slot[row]), self.keys[row], self.values[row])
        self.query = 3 * torch.randn(sum(queries), heads, dim, dtype=dtype)
        slots = torch.tensor([slot[row][p] for row, p in fresh], dtype=torch.long)
        self.layout = Layout(decodes, tuple(queries), tuple(lengths), slots, self.table,
                             torch.tensor(lengths, dtype=torch.int32)) if min(lengths) > 0 else None  # fmt: skip
        self.fresh = tuple(torch.stack([own[row][p] for row, p in fresh]) for own in (self.keys, self.values))
        self.where = fresh

    def expected(self, scale, window=None, softcap=None, stored=False):
        """Token by token, head by head."""
        out = torch.full_like(self.query, torch.nan)
        for token, (row, position) in enumerate(self.where):
            first = 0 if window is None else max(0, position - window + 1)
            keys, values = self.keys[row], self.values[row]
            if stored:
                keys, values = (dequantised(x) for x in (keys, values))
            for head in range(self.query.shape[1]):
                kv_head = head * keys.shape[1] // self.query.shape[1]
                scores = scale * keys[first : position + 1, kv_head] @ self.query[token, head]
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                out[token, head] = scores.softmax(0) @ values[first : position + 1, kv_head]
        return out


def dequantised(x):
    """int8 with one scale a vector, computed the plain way."""
    scale = (x.float().abs().amax(-1, keepdim=True) / 127).double()
    return torch.where(scale == 0, 0.0, (x.float() / scale.float()).round().double() * scale).nan_to_num(0.0)
