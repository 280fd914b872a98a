# %% [markdown]
# # A demonstration
# Prose with a formula, $E = m c^2$.

# %% role="setup"
import math

import demo_exercises
from matplotlib.figure import Figure

from labkit.course import check, ledger, predict, progress, widgets

demo_exercises.install()

# %%
ledger.show()

# %%
predict("gap", None, "s")


# %% answer="mean_gap"
def mean_gap(stamps):
    """The mean gap between timestamps.

    stamps: list of at least two times [s], rising.
    Returns the mean gap [s].
    """
    ### BEGIN SOLUTION
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)
    ### END SOLUTION


# %% check="mean_gap"
check.mean_gap(mean_gap)

# %%
mean_gap = check.use("mean_gap", mean_gap)
predict.compare("gap", mean_gap([0.0, 0.5, 1.5]), "s")


# %% answer="doubled"
def doubled(values):
    """Twice a tensor of any shape."""
    ### BEGIN SOLUTION
    return values + values
    ### END SOLUTION


# %% check="doubled"
check.doubled(doubled)


# %% answer="twice"
def twice(call):
    """Call `call` with 1 and 2 and return both results as a list."""
    first = 1
    ### BEGIN SOLUTION
    return [call(first), call(2)]
    ### END SOLUTION


# %% check="twice"
check.twice(twice)


# %% tags=["picture"]
def draw(tokens, batch):
    figure = Figure(figsize=(4, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, tokens], [0, batch])
    axes.set_xlabel("tokens")
    return figure


widgets.explore(draw, "A line from the origin.", tokens=[1, 16, 256], batch=[1, 2])

# %%
print(object(), check, math.pi)
progress.show("90_demo")

# %%
ledger.add(
    "plain model", model="labcoder", device="CPU", ttft=0.35, tpot=0.0061, throughput=164.0, memory=28e6
)
ledger.show()
