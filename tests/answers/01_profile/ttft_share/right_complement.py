# One minus the share of the tokens after the first.
def ttft_share(ttft, tpot, tokens):
    rest = sum(tpot for _ in range(1, tokens))
    return 1 - rest / (ttft + rest)
