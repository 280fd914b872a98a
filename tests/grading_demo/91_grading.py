# %% [markdown]
# # A notebook to test the grader with

# %% role="setup"
import math

import grading_exercises

from labkit.course import check

grading_exercises.install()

# %%
numbers = [math.pi, 2.5]


# %% answer="spread"
def spread(values):
    """Largest minus smallest.

    values: list of floats. Returns a float, 0.0 for an empty list.
    """
    ### BEGIN SOLUTION
    return max(values) - min(values) if values else 0.0
    ### END SOLUTION


# %% check="spread"
check.spread(spread)

# %% [markdown]
# Tensors next.


# %% answer="centred"
def centred(rows):
    """Subtract each row's mean: tensor [rows, columns] in, the same shape out."""
    ### BEGIN SOLUTION
    return rows - rows.mean(dim=1, keepdim=True)
    ### END SOLUTION


# %% check="centred"
check.centred(centred)


# %% answer="timed"
def timed(work, clock):
    """Seconds that `work()` takes by `clock()`."""
    ### BEGIN SOLUTION
    begun = clock()
    work()
    return clock() - begun
    ### END SOLUTION


# %% check="timed"
check.timed(timed)

# %%
print("the end of", numbers)
