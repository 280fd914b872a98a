"""Where the course keeps its files. Every path in labkit comes from here."""

import os
from pathlib import Path


def root() -> Path:
    """The folder that holds notebooks/, solutions/ and data/ (override with LABKIT_HOME)."""
    override = os.environ.get("LABKIT_HOME")
    return Path(override).expanduser().resolve() if override else Path(__file__).resolve().parent.parent


def data() -> Path:
    """Embedded models, evaluation text and recorded results."""
    return root() / "data"


def results() -> Path:
    """Recorded benchmark runs, one folder a device: data/results/<device>/<name>.json."""
    return data() / "results"


def notebooks() -> Path:
    """The pristine learner's edition, built from solutions/; never edited in place."""
    return root() / "notebooks"


def solutions() -> Path:
    """The source of every notebook (.py) and its executed solution (.ipynb)."""
    return root() / "solutions"


def work() -> Path:
    """The learner's own copies of the notebooks, ignored by git (override with LABKIT_WORK)."""
    override = os.environ.get("LABKIT_WORK")
    return Path(override).expanduser().resolve() if override else root() / "work"


def state() -> Path:
    """Progress, predictions and the ledger, kept beside the learner's work."""
    return work() / ".labkit"
