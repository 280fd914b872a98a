# All NaN.
def stage_budget(events, end):
    return {stage: float("nan") for stage in [event[0] for event in events] + ["remainder"]}
