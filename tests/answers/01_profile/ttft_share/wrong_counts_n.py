# Pays TPOT for the first token as well.
def ttft_share(ttft, tpot, tokens):
    return ttft / (ttft + tpot * tokens)
