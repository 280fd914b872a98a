# Builds E2E from the latency law with n instead of n - 1.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = ttft + (stamps[-1] - stamps[0]) / max(n - 1, 1) * n
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = (e2e - ttft) / (n - 1) if n > 1 else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
