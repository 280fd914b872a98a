# Forgets the first token, which arrives at TTFT itself.
import math


def tokens_within(ttft, tpot, budget):
    return 0 if budget < ttft else math.floor((budget - ttft) / tpot)
