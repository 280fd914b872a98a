# Says TPOT is 0 for a single token, which would look infinitely fast.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = (e2e - ttft) / max(n - 1, 1)
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
