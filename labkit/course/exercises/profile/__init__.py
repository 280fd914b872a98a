"""The exercises of notebook 01_profile, in the order in which they come."""

from labkit.course.exercises.profile import bottleneck, budget, clock, cost, idle, latency, utilisation

EXERCISES = (
    *clock.EXERCISES,
    *latency.EXERCISES,
    *budget.EXERCISES,
    *cost.EXERCISES,
    *bottleneck.EXERCISES,
    *idle.EXERCISES,
    *utilisation.EXERCISES,
)
