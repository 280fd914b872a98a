# The formula, with floor.
import math


def tokens_within(ttft, tpot, budget):
    if budget < ttft:
        return 0
    return 1 + math.floor((budget - ttft) / tpot)
