# Takes the median gap, so that the latency law no longer holds.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    itl = [b - a for a, b in zip(stamps, stamps[1:])]
    tpot = sorted(itl)[len(itl) // 2] if itl else None
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
