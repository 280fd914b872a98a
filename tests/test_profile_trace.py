"""The timeline: built by hand as a GPU's trace looks, and a real one on the CPU."""

import json
import random
import shlex

import pytest
import torch
from profile_stand_in import tiny_lm

from labkit.errors import LabkitError
from labkit.profile import annotate, nsys_command, nvtx_range, trace, tracer
from labkit.profile import timeline as tl
from labkit.profile.loop import decode_steps

BASE = 5_211_111_112_542.607  # a real trace's microseconds do not begin at zero


def event(kind, name, start, length, thread=7, **arguments):
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "ts": BASE + start,
        "dur": length,
        "tid": thread,
        "args": arguments,
    }


def gpu_trace(*events, program=1000.0, window=1100.0):
    """Microseconds. The program ends at `program`; our closing synchronisation fills the rest of the window."""
    return [
        {"ph": "M", "name": "process_name", "ts": BASE, "pid": 1},
        event("user_annotation", tl.WINDOW, 0, window),
        event("user_annotation", tl.PROGRAM, 1, program - 1),
        event("gpu_user_annotation", tl.WINDOW, 10, window, thread=99),
        event("cuda_runtime", "cudaDeviceSynchronize", program + 1, window - program - 2),
        event("kernel", "before us", -500, 100, thread=99),
        *events,
    ]


def read(events):
    found = tl.read(events, on_gpu=True)
    return found, tl.gaps(found, on_gpu=True)


def test_kernels_copies_and_waits_are_told_apart():
    found, gaps = read(gpu_trace(
        event("kernel", "matmul", 100, 200, thread=99),
        event("gpu_memcpy", "Memcpy DtoH", 300, 50, thread=99, bytes=8),
        event("gpu_memset", "Memset", 900, 10, thread=99, bytes=64),
        event("cuda_runtime", "cudaLaunchKernel", 90, 5),
        event("cuda_driver", "cuLaunchKernelEx", 95, 5),
        event("cuda_runtime", "cudaStreamSynchronize", 310, 45),
        event("cuda_runtime", "cudaMemcpyAsync", 290, 5),
        event("user_annotation", "decode", 80, 300),
        event("cpu_op", "aten::mm", 85, 20),
        event("cpu_op", "elsewhere", 85, 20, thread=8),
    ))  # fmt: skip
    assert [span.name for span in found.kernels] == ["matmul"]
    assert [(span.name, span.bytes) for span in found.copies] == [("Memcpy DtoH", 8), ("Memset", 64)]
    assert [span.name for span in found.waits] == [
        "cudaStreamSynchronize"
    ]  # ours at the end is not the program's
    assert [span.name for span in found.annotations] == ["decode"]
    assert [span.name for span in found.operators] == ["aten::mm"]
    assert found.launches == 2
    assert [(gap.before, gap.after) for gap in gaps] == [
        ("start", "matmul"), ("Memcpy DtoH", "Memset"), ("Memset", "end"),
    ]  # fmt: skip
    assert sum(gap.seconds for gap in gaps) == pytest.approx((1100 - 260) * 1e-6, rel=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_gaps_are_what_no_kernel_covers(seed):
    rng = random.Random(seed)
    spans = [
        (rng.randrange(0, 1000), rng.randrange(1, 90)) for _ in range(rng.randrange(1, 25))
    ]  # may overlap
    _, gaps = read(gpu_trace(*[event("kernel", "k", start, length, thread=99) for start, length in spans]))
    busy = {tick for start, length in spans for tick in range(start, min(start + length, 1100))}
    assert sum(gap.seconds for gap in gaps) * 1e6 == pytest.approx(1100 - len(busy), abs=0.1)
    assert all(
        first.start + first.seconds < second.start for first, second in zip(gaps, gaps[1:], strict=False)
    )


def test_why_the_device_was_idle():
    _, gaps = read(gpu_trace(
        event("cpu_op", "aten::linear", 10, 85),  # the launch itself is slow
        event("kernel", "a", 100, 100, thread=99),
        event("cuda_runtime", "cudaStreamSynchronize", 120, 83),  # the host waits for a, then starts anew
        event("kernel", "b", 300, 100, thread=99),
        event("kernel", "c", 600, 500, thread=99),  # 400 to 600: nothing but Python
    ))  # fmt: skip
    assert [gap.cause for gap in gaps] == ["aten::linear", "waiting", "python"]


def test_a_copy_to_pageable_memory_is_a_wait_and_no_second_one():
    found, gaps = read(gpu_trace(
        event("kernel", "a", 100, 100, thread=99),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 201, 4, thread=99, correlation=5, bytes=8),
        event("cuda_runtime", "cudaMemcpyAsync", 110, 98, correlation=5),
        event("cuda_runtime", "cudaStreamSynchronize", 210, 2),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 300, 4, thread=99, correlation=6, bytes=8),
        event("cuda_runtime", "cudaMemcpyAsync", 290, 5, correlation=6),
        event("kernel", "b", 400, 700, thread=99),
    ))  # fmt: skip
    assert [(span.name, round(span.seconds * 1e6)) for span in found.waits] == [
        ("cudaStreamSynchronize", 102)
    ]
    assert [gap.cause for gap in gaps if gap.before.startswith("Memcpy DtoH")] == ["waiting"]


def test_only_the_outer_operator_counts():
    spans = [tl.Span("outer", 0, 10), tl.Span("inner", 1, 3), tl.Span("deep", 2, 1), tl.Span("next", 10, 5)]
    assert [span.name for span in tl.outermost(spans)] == ["outer", "next"]


def test_a_cpu_trace_counts_what_would_wait_on_a_gpu():
    x = torch.randn(50, 50)

    def work():
        for _ in range(4):
            with annotate("sampling"):
                float(torch.nn.functional.linear(x, x).sum())  # .item() inside
        _ = x[x > 0]  # a mask's size must be known
        x.clone()

    found = trace(work, "cpu")
    names = [span.name for span in found.synchronisations]
    assert names.count("aten::_local_scalar_dense") == 4 and names.count("aten::nonzero") == 1
    assert any(span.name == "aten::linear" for span in found.kernels)
    assert not any(span.name == "aten::addmm" for span in found.kernels)  # inside aten::linear
    assert len(found.copies) >= 1
    assert 0 < found.gap_share < 1 and found.untraced_gap_share is None
    assert found.busy_seconds + found.idle == pytest.approx(found.seconds)
    assert set(found.stages()) == {"sampling"}
    assert set(found.causes()) == {"waiting", "python", "launching"}
    assert sum(found.causes().values()) == pytest.approx(found.idle)
    assert "on a GPU each would wait" in found.summary()


def test_a_planted_pause_is_the_longest_gap():
    import time

    x = torch.randn(20, 20)

    def work():
        x @ x
        time.sleep(0.03)
        x + x

    longest = max(trace(work, "cpu").gaps, key=lambda gap: gap.seconds)
    assert (longest.before, longest.after) == ("aten::matmul", "aten::add")
    assert longest.seconds >= 0.03


def test_the_export_is_a_chrome_trace(tmp_path):
    lm = tiny_lm()
    found = trace(decode_steps(lm, "abc", 2), lm.device)
    data = json.loads(found.export(tmp_path / "trace.json").read_text())
    assert {"traceEvents", "schemaVersion"} <= set(data)
    assert sum(event.get("cat") == "cpu_op" for event in data["traceEvents"]) >= len(found.kernels) > 20
    assert len(found.synchronisations) == 2  # a token each


def test_a_gpu_trace_is_summed_up(monkeypatch):
    events = gpu_trace(
        event("kernel", "matmul", 100, 200, thread=99),
        event("kernel", "matmul", 350, 100, thread=99),
        event("kernel", "norm", 900, 50, thread=99),
        event("cuda_runtime", "cudaStreamSynchronize", 360, 95),
    )
    monkeypatch.setattr(tracer, "_record", lambda *_: json.dumps({"traceEvents": events}))
    monkeypatch.setattr(tracer, "resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(tracer, "measure", lambda *_, **__: type("M", (), {"median": 700e-6}))
    found = trace(lambda: None)
    assert found.top(1) == [("matmul", 2, pytest.approx(300e-6))]
    assert found.busy_seconds == pytest.approx(350e-6)
    assert found.untraced_gap_share == pytest.approx(0.5)
    assert found.causes()["waiting"] == pytest.approx(450e-6)
    assert "cudaStreamSynchronize" in found.summary()
    monkeypatch.setattr(tracer, "_record", lambda *_: json.dumps({"traceEvents": gpu_trace()[:-1]}))
    with pytest.raises(LabkitError, match="no kernel"):
        trace(lambda: None)


def test_two_profilers_at_once_are_refused():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]), pytest.raises(LabkitError):
        trace(lambda: torch.ones(2) + 1, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_cuda_ranges_are_silent_and_a_gpu_is_refused():
    with nvtx_range("x"), annotate("y"):
        pass
    with pytest.raises(LabkitError, match="CUDA"):
        trace(lambda: None, "cuda")


def test_the_nsys_line_is_one_command():
    command = nsys_command("python train.py --a 'b c'", output="my run")
    assert max(map(len, command.splitlines())) < 70 and command.count(" \\\n") == command.count("\n") == 4
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["nsys", "profile"] and words[-4:] == ["python", "train.py", "--a", "b c"]
    assert "--output=my run" in words and any(word.startswith("--trace=cuda,nvtx") for word in words)
