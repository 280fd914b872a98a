# Adds up whole lengths: what overlaps is counted twice.
def stage_budget(events, end):
    budget = {}
    for stage, start, stop in events:
        budget[stage] = budget.get(stage, 0.0) + stop - start
    budget["remainder"] = end - sum(budget.values())
    return budget
