"""The drawing kernel: its cases compiled where there is a GPU, through the interpreter elsewhere."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("draw_cases.py")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernel():
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
