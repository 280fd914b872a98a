# Off by one the other way: divides by n - 2.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = (e2e - ttft) / (n - 2) if n > 2 else itl[0] if itl else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
