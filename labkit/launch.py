"""Open JupyterLab at the learner's notebooks: on the loopback address only, on the first free port."""

import os
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labkit import paths
from labkit.errors import LabkitError

LOOPBACK = "127.0.0.1"
PORTS_TRIED = 50
# nbgrader's panels belong to a teacher's own set-up, and complain without one
TEACHERS_PARTS = ("formgrader", "validate_assignment", "assignment_list", "course_list")
TEACHERS_PANELS = "@jupyter/nbgrader"
# a course room is often offline, and the question about news would come before the notebook
NEWS = "@jupyterlab/apputils-extension:announcements"


def lab(*, browser: bool = True, port: int = 8888) -> int:
    """Copy the notebooks to work/, start JupyterLab, say its address and serve until Ctrl-C.

    Args:
        browser: open a browser at the address; otherwise only print it.
        port: the first port to try; a busy one moves on to the next.

    Returns:
        The exit code of the server.

    Raises:
        LabkitError: JupyterLab is missing or cannot start.
    """
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        raise LabkitError(
            "JupyterLab is not installed.", "Run `make lab`, or `pip install jupyterlab`."
        ) from None
    from labkit.course import work

    for sentence in work.open_course():
        print(sentence)
    # a token of our own, so that we can print the one address that matters instead of Jupyter's several lines
    token = os.environ.setdefault("JUPYTER_TOKEN", secrets.token_hex(24))
    try:
        server = LabApp.initialize_server(argv=settings(browser, port))
    except SystemExit as stopped:
        raise LabkitError(
            "JupyterLab could not start; its own words are above.",
            "If it found no free port, give another one: labkit lab --port 9000",
        ) from stopped
    server.web_app.settings["page_config_hook"] = without_panels
    address = f"http://{LOOPBACK}:{server.port}{server.default_url}?token={token}"
    # the server binds its port in this loop's first callback: say the address after it
    words = f"JupyterLab serves the course at\n\n    {address}\n\nStop it with Ctrl-C."
    server.io_loop.add_callback(print, words, flush=True)
    server.start()
    return 0


def settings(browser: bool, port: int) -> list[str]:
    """Jupyter's own options for a quiet server that only this machine can reach."""
    import zmq

    root, page = place()
    unloaded = {f"nbgrader.server_extensions.{part}": False for part in TEACHERS_PARTS}
    options = [
        f"--ServerApp.ip={LOOPBACK}",
        f"--ServerApp.port={port}",
        f"--ServerApp.port_retries={PORTS_TRIED}",
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.root_dir={root}",
        f"--ServerApp.jpserver_extensions={unloaded}",
        "--ServerApp.answer_yes=True",  # one Ctrl-C ends it
        "--ServerApp.log_level=WARN",
        "--LabApp.log_level=WARN",
        f"--LabApp.default_url=/lab/tree/{quote(page)}",
    ]
    if zmq.has("curve"):  # else every kernel warns that it talks in plain text
        options.append("--KernelManager.transport_encryption=auto")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        print("Running as root, as containers do; only this machine can reach the server.", file=sys.stderr)
        options.append("--ServerApp.allow_root=True")
    return options


def without_panels(handler: Any, page_config: dict[str, Any]) -> dict[str, Any]:
    """Jupyter's hook for the page: leave out what does not belong before a learner."""
    disabled = page_config.setdefault("disabledExtensions", [])
    disabled += [name for name in (TEACHERS_PANELS, NEWS) if name not in disabled]
    return page_config


def place() -> tuple[Path, str]:
    """The folder that JupyterLab serves, and the page to open in it, as a path with forward slashes.

    The whole course when work/ lies in it, so that solutions can be opened too; else only the learner's folder.
    """
    work = paths.work()
    root = paths.root() if work.is_relative_to(paths.root()) else work
    notebooks = sorted(work.glob("[0-9][0-9]_*.ipynb"))
    page = notebooks[0] if notebooks else work
    return root, page.relative_to(root).as_posix()
