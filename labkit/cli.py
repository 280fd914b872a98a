"""The command line: labkit doctor | lab | reset | grade | progress | build | eval | bench.

A command imports what it needs when it runs, so that `labkit --help` answers at once. A LabkitError becomes one
message and exit code 2, never a traceback.
"""

import io
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from labkit.errors import LabkitError

_HERE = Path(__file__).parent
CANNOT = 2  # exit code when the command could not be carried out

app = typer.Typer(
    name="labkit",
    help="Make language-model inference fast: a hands-on course.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check this machine: what will run, what will not, and how to mend what is broken."""
    from labkit.doctor import examine

    report = examine()
    if as_json:
        print(report.json())
    else:
        from labkit.doctor.show import show

        show(report)
    raise typer.Exit(1 if report.broken else 0)


@app.command()
def lab(
    browser: Annotated[bool, typer.Option(help="Open a browser; otherwise only print the address.")] = True,
    port: Annotated[
        int, typer.Option(help="Where to start looking for a free port.", min=1, max=65535)
    ] = 8888,
) -> None:
    """Copy the notebooks to work/ and open JupyterLab there, on this machine only."""
    from labkit import launch

    raise typer.Exit(launch.lab(browser=browser, port=port))


@app.command()
def reset(notebook: Annotated[str, typer.Argument(help="Which one, such as 01 or 01_profile.")]) -> None:
    """Start a notebook over. Your version is kept as a backup beside it."""
    from labkit.course import work

    for sentence in work.reset(notebook):
        print(sentence)


@app.command()
def grade(
    files: Annotated[list[Path], typer.Argument(help="Notebooks, or folders of them.")],
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line an exercise.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one exercise and for one cell.")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB for one notebook.")] = None,
    run: Annotated[bool, typer.Option(help="Also run each notebook from top to bottom.")] = True,
) -> None:
    """Grade notebooks.

    Exit code 0: all passed. 1: something failed or was not attempted. 2: something could not run. 3: all that can
    run here passed, and some could not be verified.
    """
    from labkit.course import grading

    if as_json and as_csv:
        raise LabkitError("--json and --csv exclude each other.", "Give one of them.")
    style = "json" if as_json else "csv" if as_csv else "text"
    code = grading.grade(files, style=style, timeout=timeout, memory=memory, run_notebook=run)
    raise typer.Exit(code)


@app.command()
def progress(notebook: Annotated[str, typer.Argument(help="One notebook; all when left out.")] = "") -> None:
    """Show what is done and what is left."""
    from labkit.course import exercises, work
    from labkit.course import progress as report

    report.show(work.full_name(notebook, exercises.notebooks()) if notebook else "")


@app.command()
def build(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Which ones; all when left out.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is stale.")] = False,
    execute: Annotated[
        bool | None,
        typer.Option(
            "--execute/--no-execute",
            help="Run every solution again (minutes), or none; when left out, those whose code changed.",
        ),
    ] = None,
) -> None:
    """Make the learner's notebooks and the executed solutions from their sources (for authors)."""
    from labkit.course import build as builder

    raise typer.Exit(builder.build(notebooks or [], check=check, execute=execute))


@app.command("eval")
def evaluate(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models to compare; the embedded ones by default.")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file too.")
    ] = None,
) -> None:
    """Measure how well models predict Python: bits per byte and perplexity, with their uncertainty."""
    from labkit import quality

    quality.evaluate(models or [], json_path)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="What to measure, such as profile.")],
    model: Annotated[
        str, typer.Option(help="labcoder, labcoder@7b, a folder, a hub name.", envvar="LABKIT_MODEL")
    ] = "auto",
    device: Annotated[str | None, typer.Option(help="cuda or cpu; the best one when left out.")] = None,
    only: Annotated[
        str, typer.Option(help="Parts, such as ladder,kernels; all when left out. For fuse.")
    ] = "",
) -> None:
    """Run a benchmark and record it in data/results/ with versions, command and every repeat."""
    import importlib
    import inspect

    # these are measured through the engine, which lives in a room above their own
    found = {each: f"labkit.batch.bench_{each}" for each in ("fuse", "compress", "distil")}
    found |= {path.parent.name: f"labkit.{path.parent.name}.bench" for path in _HERE.glob("*/bench.py")}
    if name not in found:
        raise LabkitError(
            f"There is no benchmark called {name!r}.", f"There are: {', '.join(sorted(found))}."
        )
    from labkit import results

    run = importlib.import_module(found[name]).run
    if only and "only" not in inspect.signature(run).parameters:
        raise LabkitError(f"The benchmark {name} has no parts to choose from.", "Leave --only out.")
    figures = run(model, device, only=only) if only else run(model, device)
    print(f"recorded: {results.record(name, figures, device=device)}", file=sys.stderr)  # stdout ends in JSON


def stop(error: LabkitError) -> NoReturn:
    """Say what went wrong and what would work, and end with exit code 2."""
    typer.secho(f"labkit: {error.what}", fg="red", err=True)
    if error.remedy:
        typer.echo(error.remedy, err=True)
    sys.exit(CANNOT)


def main() -> None:
    """The command `labkit`."""
    for stream in (sys.stdout, sys.stderr):  # a ✓ on a console of another alphabet is no reason to stop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except LabkitError as error:
        stop(error)
