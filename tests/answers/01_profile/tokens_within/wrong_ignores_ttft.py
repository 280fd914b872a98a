# Ignores the wait for the first token.
import math


def tokens_within(ttft, tpot, budget):
    return math.floor(budget / tpot)
