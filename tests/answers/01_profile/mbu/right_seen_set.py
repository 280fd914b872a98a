# A set of addresses seen, rows one by one, and the share as ideal time over real time.
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    seen, read = set(), 0
    for address, values, width in tensors:
        if address not in seen:
            seen.add(address)
            read += values * width
    for length in lengths:
        read += length * kv_bytes_per_token
    ideal_ms = read / (bandwidth_gbs * 1e6)
    return ideal_ms / step_ms
