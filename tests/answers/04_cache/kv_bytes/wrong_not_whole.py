# A float, from 1e0.
def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    return 2.0 * layers * kv_heads * head_dim * tokens * batch * bytes_per_value
