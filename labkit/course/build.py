"""From sources to notebooks: solutions/NN_name.py → notebooks/NN_name.ipynb and solutions/NN_name.ipynb.

labkit build               both editions of every notebook; a solution is run if a code cell changed
labkit build 01_profile    of one
labkit build --execute     run every solution again; on a GPU its rungs go onto the recorded ladder
labkit build --no-execute  the learner's edition alone
labkit build --check       compare with the sources, write nothing; 1 when something drifted
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from labkit import paths
from labkit.course import edition, exercises, ledger, outputs, work
from labkit.course import source as sources
from labkit.course.store import write_atomically
from labkit.errors import LabkitError

CELL_SECONDS = 300


def pristine(source: Path) -> NotebookNode:
    """The learner's edition of one source, in memory.

    Raises:
        LabkitError: when the source is wrong.
    """
    return edition.learners(sources.read(source))


def executed(source: Path, *, cell_seconds: int = CELL_SECONDS) -> NotebookNode:
    """The edition with solutions, run from top to bottom in a fresh kernel, its outputs fit to be committed.

    It runs in a temporary folder with an empty progress, so the learner's own is neither read nor written.

    Raises:
        LabkitError: when the source is wrong, a cell fails or takes too long, or an output names this machine.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = edition.full(sources.read(source))
    began, at = time.perf_counter(), 0

    def starts(cell: NotebookNode, cell_index: int) -> None:
        nonlocal at
        at = cell_index

    with tempfile.TemporaryDirectory(prefix="labkit-build-") as folder:
        client = NotebookClient(
            notebook,
            timeout=cell_seconds,
            kernel_name="python3",
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],  # the kernel's own notices are not about the notebook
            resources={"metadata": {"path": folder}},
            on_cell_start=starts,
        )
        environment = {**os.environ, "LABKIT_WORK": folder, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise LabkitError(
                f"{source.name}: {_where(notebook, at)} stopped: {error.ename}: {error.evalue}"
            ) from None
        except CellTimeoutError:
            raise LabkitError(
                f"{source.name}: {_where(notebook, at)} ran for more than {cell_seconds} s."
            ) from None
        except DeadKernelError:
            raise LabkitError(
                f"{source.name}: the kernel died in {_where(notebook, at)}.", "Memory?"
            ) from None
        seconds = time.perf_counter() - began
        outputs.clean(notebook, [Path(folder)])
        _record_rungs(Path(folder))
    _number(notebook)
    notebook.metadata["language_info"].pop("version", None)
    notebook.metadata["labkit"]["executed"] = {"seconds": round(seconds, 1), "date": date.today().isoformat()}
    return notebook


def _record_rungs(folder: Path) -> None:
    """On a GPU the rungs that a notebook added to its ledger become part of the ladder recorded on that device."""
    import torch

    kept = folder / ".labkit" / "progress.json"
    if not (torch.cuda.is_available() and kept.exists()):
        return
    for rung in json.loads(kept.read_bytes())["ledger"]:
        figures = {field: rung[field] for field in ledger.FIGURES}
        ledger.record(rung["name"], model=rung["model"], notebook=rung["notebook"], **figures)


def with_kept_outputs(source: Path) -> NotebookNode | None:
    """The edition with solutions and the outputs it already has; None when a code cell changed or none were run."""
    there = work.read(paths.solutions() / f"{source.stem}.ipynb")
    if there is None or "executed" not in there.metadata.get("labkit", {}):
        return None
    notebook = edition.full(sources.read(source))
    old, new = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (there, notebook))
    if [cell.source for cell in old] != [cell.source for cell in new]:
        return None
    for was, now in zip(old, new, strict=True):
        now.outputs, now.execution_count = was.outputs, was.execution_count
    notebook.metadata["language_info"] = there.metadata["language_info"]
    notebook.metadata["labkit"]["executed"] = there.metadata["labkit"]["executed"]
    return notebook


def build(
    names: Sequence[str] = (),
    *,
    check: bool = False,
    execute: bool | None = None,
    say: Callable[[str], Any] = print,
) -> int:
    """Build notebooks, or with `check` compare them with their sources.

    Args:
        names: notebooks such as "01_profile" or "01"; all when empty.
        check: write nothing.
        execute: True runs every solution again (minutes), False makes the learner's edition alone. None runs a
            solution only when a code cell changed: its outputs may come from a machine that is not at hand.
        say: gets one line for each thing done or found.

    Returns:
        0, or with `check` 1 when something drifted from its source.

    Raises:
        LabkitError: when a source is wrong or a solution does not run; nothing of that notebook is written then.
    """
    drift = 0
    for source in _sources(names):
        if check:
            found = drifted(source)
            drift += len(found)
            for line in found or [f"{source.stem}: both editions agree with the source."]:
                say(line)
        else:
            _write(source, execute, say)
    return 1 if drift else 0


def drifted(source: Path) -> list[str]:
    """What no longer agrees with a source, in words; empty when all does. A learner's edits do not count."""
    parsed = sources.read(source)
    found = []
    for folder, kind in ((paths.notebooks(), "learner's notebook"), (paths.solutions(), "executed solution")):
        path = folder / f"{source.stem}.ipynb"
        there = work.read(path)
        where = f"{source.stem}: the {kind}"
        if not path.is_file():
            found.append(f"{where} is missing.")
        elif there is None:
            found.append(f"{where} cannot be read.")
        elif (own := there.metadata.get("labkit", {})).get("source_hash") != parsed.digest:
            found.append(f"{where} is older than its source{_stale(there, edition.full(parsed), kind)}.")
        elif own.get("points") != {name: exercises.find(name).points for name in parsed.exercises}:
            found.append(f"{where} has other points than the exercises.")
    return found


def _stale(there: NotebookNode, now: NotebookNode, kind: str) -> str:
    """For a solution: which outputs no longer belong to their cell."""
    if kind != "executed solution":
        return ""
    ran = {(cell.cell_type, cell.source) for cell in there.cells}
    changed = [
        str(number)
        for number, cell in enumerate(now.cells, 1)
        if cell.cell_type == "code" and ("code", cell.source) not in ran
    ]
    return (
        f"; stale outputs: code cells {', '.join(changed)}" if changed else "; its code cells are unchanged"
    )


def _write(source: Path, execute: bool | None, say: Callable[[str], Any]) -> None:
    """One notebook's editions. Everything is made before anything is written."""
    learners = pristine(source)
    if execute is not False:
        kept = None if execute else with_kept_outputs(source)
        solution = kept or executed(source, cell_seconds=CELL_SECONDS)
        text = edition.dumps(solution)
        outputs.check_size(text, solution)
        write_atomically(paths.solutions() / f"{source.stem}.ipynb", text)
        ran = solution.metadata["labkit"]["executed"]
        how = f"code unchanged, outputs of {ran['date']} kept" if kept else f"executed in {ran['seconds']} s"
        say(f"{source.stem}: solution {how}, {len(text.encode()) / 1e3:.0f} kB")
    target = paths.notebooks() / f"{source.stem}.ipynb"
    for notice in work.rescue(target):
        say(notice)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, edition.dumps(learners))
    say(f"{source.stem}: learner's notebook with {len(learners.metadata['labkit']['exercises'])} exercises")


def _sources(names: Sequence[str]) -> list[Path]:
    """The sources of the named notebooks, or all."""
    every = sorted(paths.solutions().glob("[0-9][0-9]_*.py"))
    if not names:
        if not every:
            raise LabkitError(
                "There is no notebook source in solutions/.", "Sources are solutions/NN_name.py."
            )
        return every
    return [
        paths.solutions() / f"{work.full_name(name, [source.stem for source in every])}.py" for name in names
    ]


def _where(notebook: NotebookNode, index: int) -> str:
    first = next((line for line in notebook.cells[index].source.splitlines() if line.strip()), "")
    return f"cell {index + 1} ({first[:48]!r})"


def _number(notebook: NotebookNode) -> None:
    """Execution counts 1, 2, 3, … as in a notebook that was run once."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
