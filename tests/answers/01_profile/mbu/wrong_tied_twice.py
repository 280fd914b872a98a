# Counts the tied embedding twice.
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    weights = sum(values * width for _, values, width in tensors)
    read = weights + kv_bytes_per_token * sum(lengths)
    return read / (step_ms / 1e3) / (bandwidth_gbs * 1e9)
