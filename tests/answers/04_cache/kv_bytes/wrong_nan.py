# NaN.
def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    return float("nan")
