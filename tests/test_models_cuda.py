"""The full-size presets on a GPU: built in place, quickly, and saying what labcoder says."""

import time

import pytest
import torch

from labkit import quality
from labkit.models import fill, load, memory
from labkit.models.place import largest_sensible

SAMPLE = 12_000
GIB = 1024**3


def room(gib):
    """Skip unless that much GPU memory is free."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if memory.free_bytes(torch.device("cuda", 0)) < gib * GIB:
        pytest.skip(f"needs {gib} GiB of free GPU memory")


@pytest.fixture(autouse=True)
def emptied():
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("preset", ["1b", "7b", "8b"])
def test_bf16_preset_is_built_in_place(preset):
    room(20)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    big = load(f"labcoder@{preset}", device="cuda", dtype="bfloat16")
    torch.cuda.synchronize()
    print(f"labcoder@{preset} built in {time.perf_counter() - start:.1f} s")
    assert big.weight_bytes == fill.stored_bytes(big.model)
    assert torch.cuda.max_memory_allocated() - before < 1.08 * big.weight_bytes
    small = load("labcoder", device="cuda", dtype="bfloat16")
    text = quality.evaluation_text("fixed")[:SAMPLE]
    found = quality.compare(small, big, text)
    assert found.top1_agreement > 0.97 and found.kl_divergence < 0.005
    assert quality.bits_per_byte(big, text) == pytest.approx(quality.bits_per_byte(small, text), rel=5e-3)


@pytest.mark.parametrize("preset", ["1b", "7b"])
def test_fp32_logits_are_labcoders(preset):
    room(32)
    small, big = (load(name, device="cuda", dtype="float32") for name in ("labcoder", f"labcoder@{preset}"))
    ids = small.encode(quality.evaluation_text("fixed")[:SAMPLE])[:, :2000]
    for offset in (0, 16_384 - ids.shape[1]):
        positions = torch.arange(ids.shape[1], device=ids.device)[None] + offset
        with torch.no_grad():
            want, got = (lm.model(ids, position_ids=positions).logits for lm in (small, big))
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()
        assert (got.argmax(-1) == want.argmax(-1)).float().mean() > 0.999


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_random_control_stays_finite(dtype):
    room(20)
    lm = load("labcoder@7b", device="cuda", dtype=dtype, random_weights=True)
    with torch.no_grad():
        logits = lm.model(torch.randint(0, 8192, (2, 512), device="cuda")).logits.float()
    assert logits.isfinite().all() and 0.1 < logits.std() < 20


def test_auto_takes_what_fits():
    room(24)
    assert largest_sensible(torch.device("cuda", 0), torch.bfloat16, 8192) == "labcoder@7b"
