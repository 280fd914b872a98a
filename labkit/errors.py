"""The one family of errors that labkit raises for a user's mistake or a machine's limit."""


class LabkitError(Exception):
    """What went wrong and what to do about it, in plain words.

    Args:
        what: one sentence naming the value or condition that was wrong.
        remedy: one sentence saying what would work. May be empty.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what} {remedy}".strip())

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows: the message, without the lines of labkit that noticed it."""
        return [self.what, *([self.remedy] if self.remedy else [])]
