# Takes the first stamp for TTFT, as if the request had been sent at time zero.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0]
    e2e = stamps[-1] - sent
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = (e2e - ttft) / (n - 1) if n > 1 else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
