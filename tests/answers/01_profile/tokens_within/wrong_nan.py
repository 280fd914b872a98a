# NaN.
def tokens_within(ttft, tpot, budget):
    return float("nan")
