# A function that takes the grid and returns no tensors.
def tile_attention(q, k, v, out, tokens, scale, DIM, TILE, grid):
    return {"tensors": {}, "read": {}, "written": {"out": 1}}
