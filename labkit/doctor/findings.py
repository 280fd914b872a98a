"""What the doctor found: findings with their remedy, and the outlook for each notebook."""

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what, such as "Triton".
        state: "broken" needs mending; "note" is a limit to know about.
        text: what was found.
        remedy: what to do, for everything broken.
    """

    name: str
    state: Literal["ok", "note", "broken"]
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state == "broken" and not self.remedy:
            raise ValueError(f"the finding {self.name!r} is broken and has no remedy")


@dataclass(frozen=True)
class Outlook:
    """What one part of a notebook will do on this machine, and why."""

    notebook: str
    part: str
    will: Literal["run", "run slower", "be skipped"]
    why: str


@dataclass(frozen=True)
class Report:
    """Everything the doctor has to say."""

    findings: tuple[Finding, ...]
    notebooks: tuple[Outlook, ...]

    @property
    def broken(self) -> bool:
        """Whether something needs mending."""
        return any(finding.state == "broken" for finding in self.findings)

    def json(self) -> str:
        """The report for programs."""
        content = {
            "broken": self.broken,
            "findings": [asdict(finding) for finding in self.findings],
            "notebooks": [asdict(outlook) for outlook in self.notebooks],
        }
        return json.dumps(content, indent=1, ensure_ascii=False)
