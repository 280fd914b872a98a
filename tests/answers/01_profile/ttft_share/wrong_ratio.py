# TTFT over the rest instead of over the whole.
def ttft_share(ttft, tpot, tokens):
    return ttft / (tpot * (tokens - 1)) if tokens > 1 else 1.0
