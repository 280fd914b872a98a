"""The compiled road: packed steps equal the model's own, a handful of graphs serves them all, and all comes off."""

import pytest
import torch
from test_fuse import lm_of, run
from tiny_architectures import build

from labkit import fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.errors import LabkitError
from labkit.fuse import compiled
from labkit.models import load


@pytest.fixture(autouse=True)
def fresh():
    """No graphs of another test."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    yield counters
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "phi3", "gpt2"])
def test_packed_steps_equal_the_models_own(name):
    model = build(name)
    lm, wanted = lm_of(model), run(model)
    assert compiled.apply(lm, backend="eager") == 4
    torch.testing.assert_close(run(model), wanted, rtol=1e-9, atol=1e-9)
    compiled.remove(lm)
    assert torch.equal(run(model), wanted)


def test_neither_rows_nor_layers_nor_steps_add_graphs(fresh):
    model = build("llama")
    lm = lm_of(model)
    compiled.apply(lm, backend="eager")
    for seed in range(2):
        run(model, seed=seed)
    first = fresh["stats"]["unique_graphs"]
    assert (
        4 < first <= 9
    )  # the trial; four pieces, of one token and of several; however many layers there are
    run(model, seed=5, lengths=(2, 9, 61, 17, 3, 28))
    assert fresh["stats"]["unique_graphs"] == first
    compiled.remove(lm)


def test_hooks_that_come_later_run():
    model = build("llama")
    lm, wanted = lm_of(model), run(model)
    compiled.apply(lm, backend="eager")
    run(model)
    hook = model.model.layers[1].mlp.register_forward_hook(lambda module, given, out: 2 * out)
    found = run(model)
    compiled.remove(lm)
    changed = run(model)
    torch.testing.assert_close(found, changed, rtol=1e-9, atol=1e-9)
    hook.remove()
    assert (changed - wanted).abs().max() > 0.1


def test_everything_else_runs_the_models_own_code(fresh):
    model = build("qwen2")
    lm, ids = lm_of(model), torch.arange(1, 24)[None]
    wanted = model(ids).logits
    compiled.apply(lm, backend="eager")
    fresh.clear()  # of the trial
    assert torch.equal(model(ids).logits, wanted) and not fresh["stats"]
    model.train()
    model(ids).logits.sum().backward()
    assert not fresh["stats"] and all(p.grad is not None for p in model.parameters())
    model.eval()
    compiled.remove(lm)
    assert not hasattr(lm.model, compiled.STATE)
    assert all("forward" not in vars(layer) for layer in model.get_decoder().layers)
    compiled.remove(lm)  # again, which does nothing


def test_one_road_or_the_other():
    model = build("llama")
    lm = lm_of(model)
    fuse.apply(lm)
    with pytest.raises(LabkitError, match="forward that somebody put there"):
        compiled.apply(lm, backend="eager")
    fuse.remove(lm)
    compiled.apply(lm, backend="eager")
    report = fuse.apply(lm)
    assert any("replaced" in kept.reason for kept in report.kept)
    fuse.remove(lm)
    compiled.remove(lm)


def test_a_missing_compiler_is_one_message(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler\nat all")

    lm = lm_of(build("llama"))
    with pytest.raises(LabkitError, match="torch.compile does not work here") as found:
        compiled.apply(lm, backend=broken)
    assert "fuse.apply" in found.value.remedy and not hasattr(lm.model, compiled.STATE)


def test_generated_code_serves_the_engine():
    lm = load("labcoder-draft", device="cpu")
    try:
        compiled.apply(lm)
    except LabkitError as reason:
        pytest.skip(str(reason.what))
    compiled.remove(lm)
    ids = lm.encode("def mean(values):\n    return sum(values) / len(values)\n")[0].tolist()
    requests = [Request(prompt=ids[:n], max_tokens=6, ignore_eos=True) for n in (3, 7, 12)]
    served = []
    for on in (False, True):
        if on:
            compiled.apply(lm)
        with engine_for(lm, rows=4, blocks=32, share=False) as engine:
            tickets = engine.run(requests)
        assert not any(ticket.first.error for ticket in tickets)
        served.append([ticket.first.tokens for ticket in tickets])
    compiled.remove(lm)
    assert served[0] == served[1]
