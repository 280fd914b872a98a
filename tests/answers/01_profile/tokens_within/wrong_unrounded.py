# Forgets to round, and the first token as well.
def tokens_within(ttft, tpot, budget):
    return max(0.0, (budget - ttft) / tpot)
