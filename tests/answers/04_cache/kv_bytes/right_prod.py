# A product of a list.
import math


def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    return 2 * math.prod([layers, kv_heads, head_dim, tokens, batch, bytes_per_value])
