"""Print the lines of each room of labkit, and fail for a file too long to be read in one go.

The package should stay one that a learner reads: about 9,000 lines of code. Code is what remains without blank
lines, comments and docstrings; the first column counts everything.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import Dict, List, Set, Tuple

CODE_LINES = 9000  # the aim for the whole package
FILE_LINES = 250
SLACK = 1.1  # "about": a file is not split for the sake of a dozen lines
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: Set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count(package: Path) -> Tuple[Dict[str, Tuple[int, int]], List[str]]:
    """(all lines, code lines) per room, a room being a subpackage or a top-level module; and what is too long."""
    rooms: Dict[str, Tuple[int, int]] = {}
    too_long: List[str] = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        room = path.relative_to(package).parts[0]
        before = rooms.get(room, (0, 0))
        rooms[room] = (before[0] + lines, before[1] + code_lines(text))
        if lines > FILE_LINES * SLACK:
            name = path.relative_to(package).as_posix()
            too_long.append(f"{name} has {lines} lines; aim for {FILE_LINES}")
    return rooms, too_long


def main() -> int:
    """Print the table; 1 when a file is too long."""
    rooms, too_long = count(Path(__file__).resolve().parent.parent / "labkit")
    print(f"{'lines':>7}{'code':>7}")
    for room, (lines, code) in sorted(rooms.items(), key=lambda item: -item[1][0]):
        print(f"{lines:7d}{code:7d}  {room}")
    lines, code = (sum(column) for column in zip(*rooms.values()))
    print(f"{lines:7d}{code:7d}  labkit in all; aim for {CODE_LINES} lines of code at most")
    for sentence in too_long:
        print(sentence)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
