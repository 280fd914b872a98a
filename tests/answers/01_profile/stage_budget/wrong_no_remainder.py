# Leaves the gaps out: the stages do not add up to the whole.
def stage_budget(events, end):
    cuts = sorted({time for _, start, stop in events for time in (start, stop)})
    budget = {}
    for left, right in zip(cuts, cuts[1:]):
        running = [event for event in events if event[1] <= left and right <= event[2]]
        if running:
            stage = max(running, key=lambda event: event[1])[0]
            budget[stage] = budget.get(stage, 0.0) + right - left
    return budget
