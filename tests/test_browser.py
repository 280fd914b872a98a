"""The course in a real browser: `labkit lab` serves it, a notebook opens, a cell runs and shows its output."""

import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
QUIET = [
    "--no-sandbox",  # Chromium refuses to run as root otherwise, and CI often is root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
START = 120.0  # seconds for a cold start on a busy machine


@pytest.fixture(scope="module")
def browser_path() -> str:
    """A Chromium of the system, or one that Playwright fetched."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        if Path(playwright.chromium.executable_path).exists():
            return playwright.chromium.executable_path
    reason = "no Chromium found: `apt-get install chromium`, or `.venv/bin/playwright install chromium`"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI must have one")
    pytest.skip(reason)


class Lab:
    """A running `labkit lab --no-browser`: its address and its process."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        if not list((ROOT / "notebooks").glob("01_*.ipynb")):
            self.write_notebook()
        with socket.socket() as taken:  # a busy port must not stop it
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.busy_port = taken.getsockname()[1]
            environment = {**os.environ, "LABKIT_WORK": str(self.work), "LABKIT_MODEL": "labcoder"}
            environment.pop("JUPYTER_TOKEN", None)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "labkit", "lab", "--no-browser", "--port", str(self.busy_port)],
                cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            self.said: list[str] = []
            self.left: list[psutil.Process] = []  # what outlived the server
            self.address = self._wait_for_address()

    def write_notebook(self) -> None:
        """Something to open while the course has no first notebook."""
        self.work.mkdir()
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("import labkit")], metadata=kernel
        )
        nbformat.write(notebook, self.work / "01_demo.ipynb")

    def _wait_for_address(self) -> str:
        lines: queue.Queue[str] = queue.Queue()
        assert self.process.stdout is not None
        stream = self.process.stdout
        threading.Thread(target=lambda: [lines.put(line) for line in stream], daemon=True).start()
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.said.append(lines.get(timeout=1))
            except queue.Empty:
                continue
            if found := re.search(r"http://\S+", self.said[-1]):
                return found.group()
        self.end()
        raise AssertionError("no address was printed:\n" + "".join(self.said))

    def end(self) -> int | None:
        """Ctrl-C once, as a person would; then by force. The exit code, or None when force was needed."""
        if self.process.poll() is not None:
            return self.process.returncode
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(30)
            self.left = psutil.wait_procs(family, timeout=20)[1]
            return code
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None
        finally:
            for child in family:
                if child.is_running():
                    child.kill()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, browser_path: str) -> Iterator[Lab]:
    running = Lab(tmp_path_factory.mktemp("course"))
    yield running
    running.end()


def test_only_this_machine_with_the_token_gets_in(lab: Lab) -> None:
    address = urlsplit(lab.address)
    assert address.hostname == "127.0.0.1" and address.port != lab.busy_port
    listening = [
        one.laddr for one in psutil.Process(lab.process.pid).net_connections() if one.status == "LISTEN"
    ]
    assert {place.ip for place in listening} == {"127.0.0.1"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{address.port}/api/contents", timeout=20)
    assert refused.value.code == 403


def test_a_notebook_opens_and_a_cell_runs(lab: Lab, browser_path: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=QUIET)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(90_000)
        expect.set_options(timeout=90_000)
        page.goto(lab.address)
        notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        notebook.wait_for()
        page.locator(".jp-NotebookPanel-toolbar .jp-Toolbar-kernelName >> text=Python 3").wait_for()
        page.locator('.jp-NotebookPanel-toolbar [data-status="idle"]').wait_for()
        page.screenshot(path=tmp_path / "opened.png")
        assert page.locator("dialog, .jp-Dialog").count() == 0, "a question stands before the notebook"
        assert page.locator(".jp-toast-message, .Toastify__toast").count() == 0

        first = notebook.locator(".jp-CodeCell").first
        first.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        expect(first.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[1\]"))
        assert first.locator('[data-mime-type="application/vnd.jupyter.stderr"] >> text=Error').count() == 0
        assert first.locator(".jp-RenderedText pre >> text=Traceback").count() == 0

        first.locator(".jp-InputPrompt").click()
        page.keyboard.press("Escape")
        page.keyboard.press("b")
        mine = notebook.locator(".jp-Cell.jp-mod-active .cm-content")
        mine.click()
        page.keyboard.type('print("dishes:", 6 * 7)')
        page.keyboard.press("Shift+Enter")
        expect(notebook.locator(".jp-OutputArea-output >> text=dishes: 42")).to_be_visible()
        own = notebook.locator(".jp-CodeCell", has_text="progress.show(")
        if own.count():  # the first notebook lists its exercises near its top
            own.first.locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            expect(own.first.locator(".jp-OutputArea-output >> text=time_async")).to_be_visible()
        page.screenshot(path=tmp_path / "ran.png")
        browser.close()
    print(f"screenshots in {tmp_path}")


def test_control_c_ends_it(lab: Lab) -> None:
    assert lab.end() == 0, "".join(lab.said)
    assert not lab.left, "a kernel outlived the server"
