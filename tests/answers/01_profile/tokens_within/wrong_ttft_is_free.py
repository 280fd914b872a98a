# Lets the first token come at once.
import math


def tokens_within(ttft, tpot, budget):
    return 0 if budget < ttft else 1 + math.floor(budget / tpot)
