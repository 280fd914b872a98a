"""Attention of packed chunks: the torch reference token by token, what the host decides, and the kernel's cases
through the interpreter, in a process where nothing imported Triton before."""

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
from prefill_rows import arguments

from labkit.kernels import attention, prefill
from labkit.kernels.prefill_tuning import HOPPER_SHARED, candidates, default_tuning

CASES = Path(__file__).with_name("prefill_cases.py")
OPTIONS = (
    {"scale": 0.3},
    {"scale": 0.3, "window": 5},
    {"scale": 0.3, "softcap": 2.0},
    {"scale": -0.3, "window": 20, "softcap": 2.0},
)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernel_through_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_cpu_attends_in_torch_token_by_token(options, block_size):
    rows = Rows(0, [1, 0, 17, 7, 0, 20], [33, 9, 17, 9, 0, 31], block_size, seed=block_size)
    packed = arguments(rows, padding=5)
    out = prefill.varlen_attention(*packed, **options)
    torch.testing.assert_close(out[:45], rows.expected(**options), rtol=1e-12, atol=1e-12)
    assert (out[45:] == 0).all() and len(out) == 50
    fewer = prefill.varlen_attention(*packed, **options, rows=3)
    assert torch.equal(fewer[:18], out[:18]) and (fewer[18:] == 0).all()


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("quantised", [False, True])
def test_the_same_as_attention_by_layout(options, quantised):
    rows = Rows(2, [1, 1, 7, 20, 4], [1, 33, 7, 31, 40], 4, quantised=quantised)
    expected = attention.paged_attention(rows.query, rows.pages, rows.layout, **options)
    out = prefill.varlen_attention(*arguments(rows), **options)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def test_queries_without_a_key_give_zeros():
    rows = Rows(0, [6, 3], [6, 3], 4)
    query, store, table, starts, _ = arguments(rows)
    out = prefill.varlen_attention(
        query, store, table, starts, torch.tensor([2, 0], dtype=torch.int32), scale=0.3
    )
    assert (out[:4] == 0).all() and (out[4:6] != 0).all() and (out[6:] == 0).all()


@given(
    st.sampled_from([16, 40, 64, 80, 96, 128, 192, 256]),
    st.integers(1, 32),
    st.sampled_from([(2, 2), (2, 1), (4, 4), (4, 1)]),
    st.integers(1, 9000),
    st.sampled_from([99, 163, 227]),
)
def test_tiles_hold_a_group_and_fit_into_shared_memory(head_dim, group, sizes, typical, kib):
    tuning = default_tuning(head_dim, group, *sizes, typical, kib * 1024)
    for tile in (tuning.tile_q, tuning.tile_k):
        assert tile >= 16 and tile & (tile - 1) == 0
    assert tuning.tile_q >= group
    assert tuning.shared_bytes(head_dim, *sizes) <= kib * 1024
    if typical > 1 and sizes[0] == 2:
        assert tuning.tile_q >= 64  # what Hopper multiplies at once


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 4, 100])
@pytest.mark.parametrize("stored", [1, 2])
def test_candidates_differ_and_fit(head_dim, group, stored):
    found = candidates(head_dim, group, stored)
    assert len(found) >= 3 and len(set(found)) == len(found)
    for tuning in found:
        assert tuning.tile_q >= group and tuning.shared_bytes(head_dim, 2, stored) <= HOPPER_SHARED
