"""Print the lines of each room of labkit, and fail when the package has grown past what a learner reads.

Blank lines, comments and docstrings count: they are read too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, List, Tuple

PACKAGE_LINES = 9000
FILE_LINES = 250
SLACK = 1.1  # "about": a file is not split for the sake of a dozen lines


def count(package: Path) -> Tuple[Dict[str, int], List[str]]:
    """Lines per room (a subpackage, or a module on the top level), and the files that are too long."""
    rooms: Dict[str, int] = {}
    long_files: List[str] = []
    for path in sorted(package.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        room = path.relative_to(package).parts[0]
        rooms[room] = rooms.get(room, 0) + lines
        if lines > FILE_LINES * SLACK:
            long_files.append(f"{path.relative_to(package)} has {lines} lines; aim for {FILE_LINES}")
    return rooms, long_files


def main() -> int:
    """Print the table; 1 when the package or a file is too long."""
    rooms, long_files = count(Path(__file__).resolve().parent.parent / "labkit")
    for room, lines in sorted(rooms.items(), key=lambda item: -item[1]):
        print(f"{lines:6d}  {room}")
    total = sum(rooms.values())
    print(f"{total:6d}  labkit in all, at most {PACKAGE_LINES}")
    for sentence in long_files:
        print(sentence)
    return 1 if long_files or total > PACKAGE_LINES else 0


if __name__ == "__main__":
    sys.exit(main())
