# Caps the answer at a plausible number.
def tokens_within(ttft, tpot, budget):
    return 0 if budget < ttft else min(100, 1 + int((budget - ttft) // tpot))
