# In torch, without a kernel.
import torch


def tile_attention(q, k, v, out, tokens, scale, DIM, TILE):
    out.copy_(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale))
