# Returns per cent.
def ttft_share(ttft, tpot, tokens):
    return 100 * ttft / (ttft + tpot * (tokens - 1))
