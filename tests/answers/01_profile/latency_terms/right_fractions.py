# In exact fractions; gaps in a tuple.
from fractions import Fraction
from itertools import pairwise


def latency_terms(sent, stamps):
    sent, *times = map(Fraction, [sent, *stamps])
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    tpot = sum(gaps) / len(gaps) if gaps else None
    return {"ttft": times[0] - sent, "tpot": tpot, "itl": gaps, "e2e": times[-1] - sent}
