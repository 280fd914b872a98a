# Rows of equal length are counted once.
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    weights = sum({address: values * width for address, values, width in tensors}.values())
    read = weights + kv_bytes_per_token * sum(set(lengths))
    return read / (step_ms / 1e3) / (bandwidth_gbs * 1e9)
