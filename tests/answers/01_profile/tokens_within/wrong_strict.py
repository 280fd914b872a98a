# Off by one at the limit: a token that arrives exactly in time is left out.
import math


def tokens_within(ttft, tpot, budget):
    return 0 if budget <= ttft else math.ceil((budget - ttft) / tpot)
