# NaN.
def ttft_share(ttft, tpot, tokens):
    return float("nan")
