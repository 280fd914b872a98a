# Returns one gap, the mean, instead of all of them.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = (stamps[-1] - stamps[0]) / max(n - 1, 1)
    tpot = (e2e - ttft) / (n - 1) if n > 1 else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
