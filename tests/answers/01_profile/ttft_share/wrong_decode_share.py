# The share of the tokens after the first.
def ttft_share(ttft, tpot, tokens):
    return 1 - ttft / (ttft + tpot * (tokens - 1))
