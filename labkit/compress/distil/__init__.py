"""Distillation: a student under half the size, trained to say what its teacher says.

small = student(lm, layers=2, hidden=160)               # cut out of the teacher, or start="random"
history = distil(lm, small, tokens, Settings(steps=60)) # in place
"""

from labkit.compress.distil.difficulty import share, temperatures
from labkit.compress.distil.settings import HeldOut, History, Settings, Step
from labkit.compress.distil.student import SHAPES, cast, parameters, student
from labkit.compress.distil.train import distil, easiest_first

__all__ = [
    "SHAPES",
    "HeldOut",
    "History",
    "Settings",
    "Step",
    "cast",
    "distil",
    "easiest_first",
    "parameters",
    "share",
    "student",
    "temperatures",
]
