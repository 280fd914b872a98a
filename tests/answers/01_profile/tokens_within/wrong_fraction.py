# Returns a fraction of a token.
def tokens_within(ttft, tpot, budget):
    return max(0.0, 1 + (budget - ttft) / tpot)
