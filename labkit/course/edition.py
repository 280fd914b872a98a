"""Notebooks in memory from a source: the full edition with solutions, the learner's edition with stubs.

The same source gives the same bytes: cell ids come from names and contents, and nothing depends on the machine.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Iterable

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.course import exercises
from labkit.course.exercise import Exercise
from labkit.course.source import Source
from labkit.errors import LabkitError

STUB = "# your code here\nraise NotImplementedError()"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def full(source: Source) -> NotebookNode:
    """The edition with solutions, without outputs; nbgrader's own format for an instructor's notebook."""
    cells: list[NotebookNode] = []
    used: set[str] = set()
    for given in source.cells:
        make = new_code_cell if given.cell_type == "code" else new_markdown_cell
        metadata = _metadata(given)
        cells.append(make(source=given.source, metadata=metadata, id=_cell_id(given, used)))
    own = {
        "notebook": source.notebook,
        "source_hash": source.digest,
        "exercises": list(source.exercises),
        "points": {name: exercises.find(name).points for name in source.exercises},
    }
    language = {
        "name": "python",
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "pygments_lexer": "ipython3",
    }
    notebook = new_notebook(
        cells=cells, metadata={"kernelspec": KERNEL, "language_info": language, "labkit": own}
    )
    return _stamped(_by_nbgrader(notebook, clear=False))


def learners(source: Source) -> NotebookNode:
    """The edition with stubs where the solutions were."""
    return _stamped(_by_nbgrader(full(source), clear=True))


def dumps(notebook: NotebookNode) -> str:
    """The bytes of a notebook file, always the same for the same notebook."""
    nbformat.validate(notebook)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def contents_hash(cells: Iterable[NotebookNode]) -> str:
    """sha256 over kind, id and source of every cell: changes when someone edits, not when they run it."""
    plain = [[cell["cell_type"], cell.get("id", ""), _joined(cell["source"])] for cell in cells]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def is_edited(notebook: NotebookNode) -> bool:
    """Whether someone changed a cell since the builder wrote it; true for a notebook it did not write."""
    built = notebook.get("metadata", {}).get("labkit", {}).get("contents_hash")
    return built != contents_hash(notebook.get("cells", []))


def _stamped(notebook: NotebookNode) -> NotebookNode:
    notebook.metadata["labkit"]["contents_hash"] = contents_hash(notebook.cells)
    return notebook


def _joined(text: str | list[str]) -> str:
    """A cell's source, which a notebook file may hold as a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def _metadata(given: NotebookNode) -> dict[str, object]:
    """labkit's and nbgrader's metadata of one cell."""
    metadata: dict[str, object] = {"tags": list(given.metadata["tags"])} if given.metadata.get("tags") else {}
    if "role" in given.metadata:
        metadata["labkit"] = {"role": given.metadata["role"]}
    for role in ("answer", "check"):
        if role in given.metadata:
            exercise = exercises.find(given.metadata[role])
            metadata["labkit"] = {"role": role, "exercise": exercise.name, "level": exercise.level}
            metadata["nbgrader"] = _nbgrader(exercise, role)
    return metadata


def _nbgrader(exercise: Exercise, role: str) -> dict[str, object]:
    """Schema 3: an answer is a manual-free solution cell, a check is a locked test cell worth points."""
    check = role == "check"
    common = {"schema_version": 3, "grade": check, "solution": not check, "locked": check, "task": False}
    if check:
        return {**common, "grade_id": f"check-{exercise.name}", "points": exercise.points}
    return {**common, "grade_id": exercise.name}


def _cell_id(given: NotebookNode, used: set[str]) -> str:
    """From the exercise's name where there is one, else from the content; a repeated content gets a number."""
    if "answer" in given.metadata:
        wanted = str(given.metadata["answer"])
    elif "check" in given.metadata:
        wanted = f"check-{given.metadata['check']}"
    else:
        wanted = "c-" + hashlib.sha256(f"{given.cell_type}\n{given.source}".encode()).hexdigest()[:12]
    candidate, number = wanted[:60], 2
    while candidate in used:
        candidate, number = f"{wanted[:56]}-{number}", number + 1
    used.add(candidate)
    return candidate


def _by_nbgrader(notebook: NotebookNode, *, clear: bool) -> NotebookNode:
    """nbgrader's own steps from an instructor's notebook to a student's, as `generate_assignment` runs them."""
    from nbgrader.preprocessors import (
        CheckCellMetadata,
        ClearOutput,
        ClearSolutions,
        ComputeChecksums,
        LockCells,
    )

    steps = [LockCells(), ClearOutput(), CheckCellMetadata(), ComputeChecksums(), CheckCellMetadata()]
    if clear:
        steps.insert(1, ClearSolutions(code_stub={"python": STUB}))
    result, resources = copy.deepcopy(notebook), {}  # type: NotebookNode, dict[str, object]
    for step in steps:
        step.log.setLevel(logging.CRITICAL)  # what it would log comes as the exception's text
        try:
            result, resources = step.preprocess(result, resources)
        except Exception as error:
            name = notebook.metadata["labkit"]["notebook"]
            raise LabkitError(f"{name}: nbgrader's {type(step).__name__} refuses it: {error}.") from error
    return result
