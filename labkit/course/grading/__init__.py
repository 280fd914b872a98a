"""Grade learners' notebooks. Verdicts are computed here, in a process that no learner's code ever enters.

read (notebook.py)     the file, paired with the course's own edition → jobs, and a copy to run
judge (verdict.py)     an exercise's check, on a stand-in that calls the learner's function in its own process:
                       session.py ⇄ wire.py ⇄ worker.py, confined by confine.py, forked by workers.py
run (run.py)           the copy from top to bottom with nbval
grade (files.py)       the above for many files, and what report.py makes of it
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def grade(files: Sequence[Path], **options: Any) -> int:
    """Grade notebooks and print what they earned; see `labkit.course.grading.files.grade`."""
    from labkit.course.grading import files as handed_in

    return handed_in.grade(files, **options)
