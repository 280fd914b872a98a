"""The exercises of notebook 05_fuse, in the order in which they come."""

from labkit.course.exercises.fuse import attention, gated, graphs, law, merging, moved, softmax

EXERCISES = (
    *law.EXERCISES,
    *moved.EXERCISES,
    *gated.EXERCISES,
    *softmax.EXERCISES,
    *attention.EXERCISES,
    *merging.EXERCISES,
    *graphs.EXERCISES,
)
