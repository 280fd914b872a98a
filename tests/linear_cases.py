"""Cases of the linear layers' kernels, run by test_kernels_linear.py in a process with TRITON_INTERPRET=1."""

import os

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_kernels_linear.py"

import pytest  # noqa: E402
import torch  # noqa: E402

from labkit.errors import LabkitError  # noqa: E402
from labkit.kernels import linear_tiling, tuning  # noqa: E402
from labkit.kernels.linear import arrival_counters, launch, linear, reference, scratch_numbers  # noqa: E402
from labkit.kernels.linear_tiling import Tiling  # noqa: E402
from labkit.kernels.linear_tune import tune  # noqa: E402
from labkit.timing import compare  # noqa: E402

VECTOR = [  # N, K, tiling; no size is a multiple of a tile but one
    (37, 531, Tiling(4, 128, 4, 1)),
    (37, 531, Tiling(8, 64, 2, 3, 3)),
    (23, 64, Tiling(1, 64, 1, 1)),
    (24, 768, Tiling(4, 128, 4, 1, 6)),
    (5, 1, Tiling(2, 1, 1, 1)),
    (33, 300, None),
]
TILES = [
    (70, 129, Tiling(16, 32, 4, 2)),
    (70, 331, Tiling(32, 16, 4, 3, 4)),
    (64, 256, Tiling(64, 128, 4, 4, 2)),
    (3, 17, Tiling(16, 16, 1, 1, 2)),
    (130, 300, None),
]
EPILOGUES = [(False, False, None), (True, True, "gelu"), (False, True, "gelu_tanh"), (True, False, "gelu")]


def drawn(tokens, n, k, dtype=torch.float32, seed=0):
    """x and a weight that is the middle of a larger one whose other rows are NaN; bias and residual."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).to(dtype)

    merged = torch.full((n + 9, k), torch.nan, dtype=dtype)
    merged[4 : 4 + n] = normal(n, k, scale=3 * k**-0.5)
    return normal(tokens, k, scale=3), merged[4 : 4 + n], normal(n, scale=4), normal(tokens, n, scale=8)


def poisoned(tokens, n, dtype, splits=8):
    numbers = scratch_numbers(tokens, n, splits)
    return {
        "out": torch.full((tokens, n), torch.nan, dtype=dtype),
        "scratch": torch.full((numbers + 3,), torch.nan),
    }


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "n", "k", "tiling"),
    [(1, *case) for case in VECTOR] + [(t, *case) for case, t in zip(TILES, (16, 3, 2, 7, 13), strict=True)],
    ids=str,
)
def test_equal_to_the_reference_in_fp64(tokens, n, k, tiling, epilogue):
    x, weight, bias, add = drawn(tokens, n, k, seed=n + k)
    with_bias, with_add, activation = epilogue
    options = {"add": add if with_add else None, "activation": activation}
    bias = bias if with_bias else None
    double = [None if t is None else t.double() for t in (x, weight, bias, options["add"])]
    expected = reference(*double[:3], add=double[3], activation=activation)
    counters = arrival_counters(n, "cpu")
    counted = launch(
        x, weight, bias, **options, tiling=tiling, counters=counters, **poisoned(tokens, n, x.dtype)
    )
    torch.testing.assert_close(counted.double(), expected, rtol=1e-5, atol=1e-5)
    assert not counters.any(), "the next launch needs them at zero"
    alone = launch(x, weight, bias, **options, tiling=tiling, **poisoned(tokens, n, x.dtype))
    assert torch.equal(alone, counted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("splits", [1, 3])
def test_half_precision(dtype, tokens, splits):
    x, weight, bias, add = drawn(tokens, 45, 402, dtype)
    out = launch(x, weight, bias, add=add, activation="gelu", splits=splits, tiling=Tiling(16, 64, 4, 2),
                 **poisoned(tokens, 45, dtype))  # fmt: skip
    expected = reference(x.double(), weight.double(), bias.double(), add=add.double(), activation="gelu")
    assert out.dtype == dtype
    slack = 2 * torch.finfo(dtype).eps  # of one rounding; the interpreter cuts bf16 off
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack)


@pytest.mark.parametrize("tokens", [1, 6])
def test_the_number_of_shares_changes_rounding_only(tokens):
    x, weight, _, _ = drawn(tokens, 10, 16 * 19)
    expected = reference(x.double(), weight.double())
    for splits in (1, 2, 7, 18, 19, 1000):
        out = launch(
            x, weight, splits=splits, tiling=Tiling(16, 16, 4, 1), **poisoned(tokens, 10, x.dtype, 19)
        )
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_token_gives_the_same_bits_in_any_company():
    x, weight, bias, add = drawn(16, 70, 331)
    together = launch(x, weight, bias, add=add, tiling=Tiling(32, 16, 4, 1, 3))
    for some in (slice(0, 2), slice(5, 16), slice(3, 12)):
        part = launch(x[some], weight, bias, add=add[some], tiling=Tiling(32, 16, 4, 1, 3))
        assert torch.equal(part, together[some])


@pytest.mark.parametrize("splits", [1, 3])
def test_a_nan_stays_where_it_belongs(splits):
    x, weight, _, add = drawn(4, 20, 100)
    x[2, 99] = add[0, 7] = torch.nan
    weight[11, 3] = torch.nan
    wrong = torch.zeros(4, 20, dtype=torch.bool)
    wrong[2], wrong[:, 11], wrong[0, 7] = True, True, True
    out = launch(x, weight, add=add, activation="gelu", splits=splits, tiling=Tiling(16, 16, 4, 1))
    assert torch.equal(out.isnan(), wrong)
    vector = launch(x[:1], weight, add=add[:1], splits=splits, tiling=Tiling(4, 16, 4, 1))
    assert torch.equal(vector.isnan(), wrong[:1])


@pytest.mark.parametrize("tokens", [1, 6])
def test_operands_may_be_views(tokens):
    x, weight, bias, add = drawn(tokens, 20, 100)
    wanted = launch(x, weight, bias, add=add)
    spread = torch.full((tokens, 2, 103), torch.nan)
    spread[:, 1, 3:] = x
    columns = torch.cat([torch.full((20, 7), torch.nan), weight, torch.full((20, 2), torch.nan)], 1)
    biases = torch.stack([bias, bias * torch.nan], 1)[:, 0]
    found = launch(spread[:, 1, 3:], columns[:, 7:107], biases, add=add.t().contiguous().t())
    assert torch.equal(found, wanted)
    assert torch.equal(launch(x.t().contiguous().t(), weight, bias, add=add), wanted)


def test_the_activations_over_their_whole_range():
    weight = torch.linspace(-9, 9, 301)[:, None]
    for activation in ("gelu", "gelu_tanh"):
        expected = reference(torch.ones(1, 1).double(), weight.double(), activation=activation)
        out = launch(torch.ones(1, 1), weight, activation=activation, tiling=Tiling(64, 1, 4, 1))
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


def test_large_values_do_not_overflow_the_activation():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weight = torch.tensor([[-3e4, 3e4], [-90.0, 90.0], [6.0, -6.0], [0.0, -0.0]])
    for activation in ("gelu", "gelu_tanh"):
        expected = reference(x.double(), weight.double(), activation=activation)
        torch.testing.assert_close(
            launch(x, weight, activation=activation).double(), expected, rtol=1e-5, atol=1e-6
        )


def test_dependent_launch_is_no_matter_here():
    x, weight, bias, add = drawn(1, 20, 100)
    assert torch.equal(launch(x, weight, bias, add=add, pdl=True), launch(x, weight, bias, add=add))


def test_what_cannot_be_is_refused():
    x, weight, _, _ = drawn(3, 40, 100)
    tiling = Tiling(16, 16, 4, 1)
    with pytest.raises(LabkitError, match="Scratch"):
        launch(x, weight, splits=2, tiling=tiling, scratch=torch.empty(2 * 3 * 40 - 1))
    with pytest.raises(LabkitError, match=r"\[3, 41\]"):
        launch(x, weight, tiling=tiling, out=torch.empty(3, 41))
    with pytest.raises(LabkitError, match=r"\[3, 40\] torch.float16"):
        launch(x, weight, tiling=tiling, out=torch.empty(3, 40).half())
    with pytest.raises(LabkitError, match="contiguous"):
        launch(x, weight, tiling=tiling, out=torch.empty(40, 3).t())
    with pytest.raises(LabkitError, match="2 counters .* 3 of int32"):
        launch(x, weight, splits=2, tiling=tiling, counters=arrival_counters(2, "cpu"))
    with pytest.raises(LabkitError, match="0 shares"):
        launch(x, weight, splits=0, tiling=tiling)


def test_tuning_finds_the_fastest_and_the_kernels_take_it(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    linear_tiling.forget()
    cpu = torch.device("cpu")
    chosen = {}

    class Took:
        def __init__(self, median):
            self.median = median

    def timer(fns, *, device):
        for fn in fns.values():
            fn()
        chosen[len(chosen)] = list(fns)[-1]
        return {name: Took(1.0 + len(fns) - i) for i, name in enumerate(fns)}  # the last is the fastest

    refused = {}
    found = tune(
        [(20, 70), (20, 70), (9, 33)], torch.float32, "cpu", timer, tokens=(1, 3, 16), refused=refused
    )
    assert not refused
    assert set(found) == {f"linear{t} float32 {s}" for t in (1, 16) for s in ("20x70", "9x33")}
    before = {key: linear_tiling.tiling_for(cpu, torch.float32, 20, 70, key) for key in (1, 16)}
    tuning.save(tuning.device_name(cpu), found)
    linear_tiling.forget()
    for tokens, name in ((1, chosen[0]), (16, chosen[1])):
        tiling = linear_tiling.tiling_for(cpu, torch.float32, 20, 70, tokens)
        assert str(tiling) == name and tiling != before[tokens]
        assert found[f"linear{tokens} float32 20x70"]["seconds"] == 2.0
    x, weight, bias, add = drawn(3, 20, 70)
    torch.testing.assert_close(launch(x, weight, bias, add=add), linear(x, weight, bias, add=add))
    linear_tiling.forget()


def test_tuning_takes_labkits_own_timer_and_leaves_out_what_is_wrong(monkeypatch):
    from labkit.kernels import linear_tune

    def broken(x, weight, *, tiling, **options):
        if tiling.rows == 32:
            raise RuntimeError("out of shared memory")
        return launch(x, weight, tiling=tiling, **options) * (torch.nan if tiling.tile == 64 else 1)

    monkeypatch.setattr(linear_tune, "launch", broken)
    refused = {}
    found = tune([(33, 65)], torch.float32, "cpu", compare_once, tokens=(16,), refused=refused)
    entry = found["linear16 float32 33x65"]
    assert entry["rows"] != 32 and entry["tile"] != 64 and entry["seconds"] > 0
    assert any("shared memory" in why for why in refused.values())
    assert any("are wrong" in why for why in refused.values())
    monkeypatch.setattr(linear_tune, "launch", lambda x, weight, **options: torch.zeros(len(x), len(weight)))
    with pytest.raises(LabkitError, match="no candidate"):
        tune([(33, 65)], torch.float32, "cpu", compare_once, tokens=(16,))


def compare_once(fns, *, device):
    return compare(fns, device=device, warmup=0, repeats=1)


def test_there_is_no_kernel_for_double():
    with pytest.raises(LabkitError, match="float64"):
        tune([(33, 65)], torch.float64, "cpu", compare)
