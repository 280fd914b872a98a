# Looks for tied memory at the two ends of the list only.
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    weights = sum(values * width for _, values, width in tensors)
    if tensors[-1][0] == tensors[0][0]:
        weights -= tensors[0][1] * tensors[0][2]
    return (weights + kv_bytes_per_token * sum(lengths)) / (step_ms / 1e3) / (bandwidth_gbs * 1e9)
