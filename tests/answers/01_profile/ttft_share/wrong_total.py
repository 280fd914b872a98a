# Returns the whole latency.
def ttft_share(ttft, tpot, tokens):
    return ttft + tpot * (tokens - 1)
