# Gaps with zip, TPOT from the definition.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = [later - earlier for earlier, later in zip(stamps, stamps[1:])]
    tpot = (e2e - ttft) / (n - 1) if n > 1 else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
