"""The exercises of notebook 03_batch, in the order in which they come."""

from labkit.course.exercises.batch import law, memory, padding, priority, step, windows

EXERCISES = (
    *law.EXERCISES,
    *padding.EXERCISES,
    *windows.EXERCISES,
    *step.EXERCISES,
    *memory.EXERCISES,
    *priority.EXERCISES,
)
