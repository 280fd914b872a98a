"""The drawing kernel: its cases through the interpreter, and compiled where there is a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CASES = Path(__file__).with_name("draw_cases.py")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
@pytest.mark.parametrize("interpreted", ["1", pytest.param("0", marks=GPU)])
def test_the_kernel(interpreted):
    environment = {**os.environ, "TRITON_INTERPRET": interpreted, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
