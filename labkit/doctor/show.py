"""The doctor's report in a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.doctor.findings import Report

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "bold red")}
STYLES = {"run": "green", "run slower": "yellow", "be skipped": "yellow"}


def show(report: Report, console: Console | None = None) -> None:
    """Print the findings, what the notebooks will do, and a last line that says it all."""
    console = console or Console()
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    for finding in report.findings:
        mark, style = MARKS[finding.state]
        text = Text(finding.text)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(mark, style=style), Text(finding.name), text)
    console.print(table)
    if report.notebooks:
        console.print("\nOn this machine:")
        plan = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
        for one in report.notebooks:
            plan.add_row(
                Text(one.notebook), Text(one.part), Text(one.will, style=STYLES[one.will]), Text(one.why)
            )
        console.print(plan)
    broken = [finding.name for finding in report.findings if finding.state == "broken"]
    ending = f"To mend: {', '.join(broken)}." if broken else "Everything that the course needs works here."
    console.print(f"\n{ending}")
