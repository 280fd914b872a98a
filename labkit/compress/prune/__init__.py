"""Pruning: fewer weights. Single ones set to zero, or whole heads and neurons cut out, then repaired by training.

scores = importance(lm, tokens)                         # |Σ activation · gradient| of every head and neuron
small = shrink(lm, *choose(scores, counts(lm, 1 / 3)))  # really smaller matrices
refit(lm, small, tokens)                                # closed form, no gradients
recover(small, tokens, steps=200)                       # AdamW, 1e-3 → 1e-4
"""

from labkit.compress.prune.importance import Importance, importance
from labkit.compress.prune.magnitude import Sparsity, magnitude, smallest, sparsity
from labkit.compress.prune.recover import Recovery, Step, learning_rate, recover
from labkit.compress.prune.refit import refit
from labkit.compress.prune.shrink import Counts, choose, counts, shrink
from labkit.compress.prune.study import study
from labkit.compress.prune.units import Units, units
from labkit.compress.prune.until import Loop, Round, decode_speedup, until

__all__ = [
    "Counts",
    "Importance",
    "Loop",
    "Recovery",
    "Round",
    "Sparsity",
    "Step",
    "Units",
    "choose",
    "counts",
    "decode_speedup",
    "importance",
    "learning_rate",
    "magnitude",
    "recover",
    "refit",
    "shrink",
    "smallest",
    "sparsity",
    "study",
    "units",
    "until",
]
