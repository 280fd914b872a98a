"""Every Triton kernel through the real compiler, for GPUs that need not be there."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("compile_cases.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NVIDIA's assembler comes with Triton for x86-64")
def test_the_kernels_compile_for_gpus(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
