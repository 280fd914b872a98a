"""The course machinery: checks and hints, predictions, progress, the ledger, the notebook builder, the grader."""

from labkit.course import ledger as ledger
from labkit.course import progress as progress
from labkit.course import widgets as widgets
from labkit.course.checks import check
from labkit.course.display import Badge, Table, measured_here, recorded, show
from labkit.course.predictions import predict

__all__ = [
    "Badge",
    "Table",
    "check",
    "ledger",
    "measured_here",
    "predict",
    "progress",
    "recorded",
    "show",
    "widgets",
]
