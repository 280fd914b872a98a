# Hard-coded: the shares that articles quote.
def stage_budget(events, end):
    shares = {
        "preprocessing": 0.05,
        "compile": 0.15,
        "forward": 0.5,
        "sampling": 0.25,
        "postprocessing": 0.05,
    }
    names = {stage for stage, _, _ in events}
    budget = {stage: share * end for stage, share in shares.items() if stage in names}
    budget["remainder"] = end - sum(budget.values())
    return budget
