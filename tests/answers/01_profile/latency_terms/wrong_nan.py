# All NaN.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = float("nan")
    e2e = float("nan")
    itl = [float("nan")] * (n - 1)
    tpot = float("nan")
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
