# The formula.
def ttft_share(ttft, tpot, tokens):
    return ttft / (ttft + tpot * (tokens - 1))
