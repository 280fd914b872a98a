# Rounds up: counts a token that has not arrived yet.
import math


def tokens_within(ttft, tpot, budget):
    return 0 if budget < ttft else 1 + math.ceil((budget - ttft) / tpot)
