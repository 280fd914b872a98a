# Forgets head_dim.
def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    return 2 * layers * kv_heads * tokens * batch * bytes_per_value
