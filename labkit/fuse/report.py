"""What fusion did to a model, module by module."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kept:
    """A module that stays as it was.

    Attributes:
        module: its name in the model.
        part: the part of `fuse.apply` that does not apply to it; "" for all.
        reason: the end of a sentence that begins with the module.
    """

    module: str
    part: str
    reason: str


@dataclass
class Report:
    """What `fuse.apply` did.

    Attributes:
        applied: module → parts that apply to it.
        kept: what stays as it was, and why.
    """

    applied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for each kind of module: layers that are alike share one."""
        lines: dict[str, list[str]] = {}
        for module, parts in self.applied.items():
            lines.setdefault(f"{_kind(module)}: {', '.join(parts)}", []).append(module)
        for each in self.kept:
            text = (
                f"{_kind(each.module)} stays as it was{f' ({each.part})' if each.part else ''}: {each.reason}"
            )
            lines.setdefault(text, []).append(each.module)
        counted = (f"{line}  ×{len(found)}" if len(found) > 1 else line for line, found in lines.items())
        return "\n".join(counted) or "Nothing was applied."


def _kind(module: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)
