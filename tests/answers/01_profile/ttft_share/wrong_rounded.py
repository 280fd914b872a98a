# Rounds to whole per cents.
def ttft_share(ttft, tpot, tokens):
    return round(ttft / (ttft + tpot * (tokens - 1)), 2)
