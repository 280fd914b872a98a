# Rounds instead of rounding down.
def tokens_within(ttft, tpot, budget):
    return 0 if budget < ttft else 1 + round((budget - ttft) / tpot)
