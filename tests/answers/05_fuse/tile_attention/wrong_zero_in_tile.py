# Masks with 0 inside the tiles that it walks.
import triton
import triton.language as tl


@triton.jit
def tile_attention(q, k, v, out, tokens, scale, DIM: tl.constexpr, TILE: tl.constexpr):
    place = tl.arange(0, TILE)
    column = tl.arange(0, DIM)
    query = tl.program_id(0) * TILE + place
    rows = query[:, None] * DIM + column[None, :]
    there = query[:, None] < tokens
    mine = tl.load(q + rows, mask=there, other=0.0)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * TILE, TILE):
        key = start + place
        given = key[:, None] < tokens
        keys = tl.load(k + key[:, None] * DIM + column[None, :], mask=given, other=0.0)
        values = tl.load(v + key[:, None] * DIM + column[None, :], mask=given, other=0.0)
        scores = tl.dot(mine, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(key[None, :] <= query[:, None], scores, 0.0)
        higher = tl.maximum(top, tl.max(scores, 1))
        old = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * old + tl.sum(weights, 1)
        mixed = mixed * old[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = higher
    tl.store(out + rows, mixed / total[:, None], mask=there)
