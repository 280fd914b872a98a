"""The exercises of notebook 02_compress, in the order in which they come."""

from labkit.course.exercises.compress import (
    awq,
    distilled,
    groups,
    importance,
    integers,
    knapsack,
    nibbles,
    rounding,
    sizes,
)

EXERCISES = (
    *rounding.EXERCISES,
    *groups.EXERCISES,
    *nibbles.EXERCISES,
    *sizes.EXERCISES,
    *integers.EXERCISES,
    *awq.EXERCISES,
    *knapsack.EXERCISES,
    *importance.EXERCISES,
    *distilled.EXERCISES,
)
