"""The exercises of notebook 04_cache, in the order in which they come."""

from labkit.course.exercises.cache import attention, blocks, memory, prefix, quantised

EXERCISES = (
    *attention.EXERCISES,
    *memory.EXERCISES,
    *blocks.EXERCISES,
    *prefix.EXERCISES,
    *quantised.EXERCISES,
)
