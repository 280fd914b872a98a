# Spreads the whole wait, TTFT included, over the tokens.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = e2e / n if n > 1 else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
