"""The Triton decode kernel: its cases through the interpreter, in a process where nothing imported Triton before,
and what the host decides."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_rows import Rows

from labkit.kernels import attention, paged_decode

CASES = Path(__file__).with_name("kernel_cases.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernel_through_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_a_cpu_decodes_in_torch():
    rows = Rows(3, [1, 1, 1], [5, 9, 1], 4)
    arguments = (rows.query, rows.pages, rows.table, rows.layout.visible)
    for options in ({"scale": 0.3}, {"scale": 0.3, "window": 4}, {"scale": 0.3, "softcap": 2.0}):
        assert torch.equal(
            paged_decode.decode(*arguments, **options), attention.paged_decode(*arguments, **options)
        )


@given(st.integers(1, 5000), st.integers(1, 10**6), st.integers(1, 200))
def test_shares_fill_the_gpu_and_are_never_tiny(programs, tokens, processors):
    shares = paged_decode.choose_shares(programs, tokens, processors)
    assert 1 <= shares <= paged_decode.MOST_SHARES
    if shares > 1:
        assert tokens // shares >= paged_decode.LEAST_SHARE
        assert programs * (shares - 1) < 4 * processors  # no more than needed
    if shares < min(paged_decode.MOST_SHARES, tokens // paged_decode.LEAST_SHARE):
        assert programs * shares >= 4 * processors  # and enough, where the context is long enough


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("element", [1, 2, 4])
def test_tiles_are_what_tensor_cores_take(head_dim, group, element):
    tuning = paged_decode.default_tuning(head_dim, group, element)
    assert tuning.tile in (16, 32, 64, 128) and (tuning.dot or group == 1)
    assert tuning.stages * 2 * tuning.tile * head_dim * element <= 160 * 1024  # of 227 KiB shared memory
