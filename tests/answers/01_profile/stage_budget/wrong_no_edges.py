# Forgets the time before the first event and after the last one.
def stage_budget(events, end):
    cuts = sorted({time for _, start, stop in events for time in (start, stop)})
    budget = {"remainder": 0.0}
    for left, right in zip(cuts, cuts[1:]):
        running = [event for event in events if event[1] <= left and right <= event[2]]
        stage = max(running, key=lambda event: event[1])[0] if running else "remainder"
        budget[stage] = budget.get(stage, 0.0) + right - left
    return budget
