# Keys and values added up, layer by layer.
def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    one = kv_heads * head_dim * tokens * batch * bytes_per_value
    return sum(one + one for _ in range(layers))
