# Counts arrivals one by one; returns a whole float.
def tokens_within(ttft, tpot, budget):
    tokens = 0
    while ttft + tokens * tpot <= budget:
        tokens += 1
    return float(tokens)
