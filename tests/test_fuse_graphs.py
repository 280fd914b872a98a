"""Captured steps without a GPU: sizes, padding, and the engine on packs as a graph would read them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_fuse import KNOWN, lm_of
from tiny_architectures import VOCAB, build
from tiny_models import tiny_llama

from labkit import fuse
from labkit.batch import build as building
from labkit.batch.build import engine_for
from labkit.batch.model_runner import ModelRunner
from labkit.batch.request import Request
from labkit.batch.sampling import Sampling
from labkit.cache.numbers import Numbers, block_table
from labkit.cache.pack import forward
from labkit.errors import LabkitError
from labkit.fuse import graphs, operations
from labkit.fuse.buckets import MOST_TOKENS, Bucket, bucket_for, buckets
from labkit.fuse.graph_inputs import GraphInputs, padded
from labkit.fuse.watch import Watch


def step_of(queries, extra=0, wanted=None):
    """A step of rows with so many tokens."""
    tokens = sum(queries)
    return Numbers(
        [7] * tokens,
        list(range(tokens)),
        [50] * tokens,
        [-1] * tokens,
        list(range(len(queries) + extra)) if wanted is None else wanted,
        queries,
        [n + 3 for n in queries],
        np.ones((len(queries), 4), dtype=np.int32),
    )


@given(st.integers(1, 600), st.integers(1, 4000), st.booleans())
def test_sizes_go_from_the_largest_down_and_lose_little(rows, step_tokens, mixed):
    found = buckets(rows, step_tokens, mixed=mixed)
    assert len(set(found)) == len(found) and found[0].tokens == max(bucket.tokens for bucket in found)
    assert [bucket.tokens for bucket in found] == sorted((bucket.tokens for bucket in found), reverse=True)
    decodes = sorted(bucket.tokens for bucket in found if not bucket.mixed)
    assert decodes[0] == 1 and decodes[-1] == min(rows, step_tokens)
    assert all(
        large <= max(2 * small, small * 1.5) or large - small <= 8
        for small, large in zip(decodes, decodes[1:], strict=False)
    )
    chunks = [bucket.tokens for bucket in found if bucket.mixed]
    assert bool(chunks) == mixed and max(chunks, default=0) == (min(step_tokens, MOST_TOKENS) if mixed else 0)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.booleans())
def test_a_step_goes_into_the_smallest_size_that_holds_it(queries, mixed):
    queries = sorted(queries, key=lambda n: n != 1)
    sizes = buckets(24, 700, mixed=mixed)
    step = step_of(queries)
    found = bucket_for(step, sizes)
    chunks = any(n > 1 for n in queries)
    able = [
        bucket
        for bucket in sizes
        if bucket.mixed == chunks and bucket.tokens >= sum(queries) and bucket.rows >= len(queries)
    ]
    if not able:
        assert found is None
        return
    assert found in able and found.tokens == min(bucket.tokens for bucket in able)
    fields = padded(found, step)
    for name in ("ids", "positions", "slots", "owners"):
        assert len(fields[name]) == found.tokens
    assert len(fields["wanted"]) == len(fields["visible"]) == found.rows == len(fields["starts"]) - 1
    assert set(fields["slots"][sum(queries) :]) <= {0} and set(fields["owners"][sum(queries) :]) <= {-1}
    assert set(fields["visible"][len(queries) :]) <= ({0} if found.mixed else {1})
    assert fields["starts"][-1] == sum(queries)


def test_steps_that_no_graph_fits():
    sizes = buckets(4, 64, mixed=True)
    assert bucket_for(step_of([1] * 4, extra=1), sizes) is None, (
        "guesses want more logits than there are rows"
    )
    assert bucket_for(step_of([65]), sizes) is None
    assert bucket_for(step_of([20]), buckets(4, 64, mixed=False)) is None
    assert bucket_for(step_of([20]), sizes) == Bucket(24, 4, True)


def test_a_block_table_is_padded_with_the_reserved_block():
    assert block_table([[4, 5, 6], [9]]).tolist() == [[4, 5, 6], [9, 0, 0]]


class Replayed:
    """What StepGraphs does, run kernel by kernel: packs come from the fixed memory, padded."""

    def __init__(self, lm, layers, newest, *, rows, step_tokens, width):
        self.lm, self.sizes, self.used = lm, buckets(rows, step_tokens, mixed=True), set()
        self.inputs = GraphInputs(max(rows, min(step_tokens, MOST_TOKENS)), rows, width, newest, layers)

    def run(self, step):
        bucket = bucket_for(step, self.sizes)
        if bucket is None:
            return None
        self.used.add(bucket)
        self.inputs.fill(bucket, step)
        return forward(self.lm, self.inputs.pack(bucket))[: len(step.wanted)]


@pytest.fixture
def replayed(monkeypatch):
    """An engine's runner takes its steps from the fixed memory; returns what was used, engine by engine."""
    made, plain = [], ModelRunner

    def runner(lm, cache, rows, *, graphs):
        def capture(newest):
            most = max(len(pages.keys) for pages in cache.layers)
            made.append(Replayed(lm, cache.layers, newest, rows=rows, step_tokens=4000, width=most))
            return made[-1]

        return plain(lm, cache, rows, graphs=capture)

    monkeypatch.setattr(
        operations, "available", lambda device: True
    )  # all chunks through one kernel's reference
    monkeypatch.setattr(building, "ModelRunner", runner)
    return made


@pytest.mark.parametrize("name", KNOWN)
def test_padded_steps_say_the_same(name, replayed, monkeypatch):
    lm = lm_of(build(name))
    torch.manual_seed(1)
    texts = [torch.randint(1, VOCAB, (n,)).tolist() for n in (3, 41, 17, 26, 1, 9)]
    asked = [
        Request(prompt=text, max_tokens=5 + n, ignore_eos=True, sampling=Sampling(temperature=n % 2, seed=n))
        for n, text in enumerate(texts)
    ]
    settings = {"blocks": 17, "block_size": 4, "rows": 4, "step_tokens": 29}
    fuse.apply(lm)
    with engine_for(lm, **settings) as engine:
        found = [ticket.first.tokens for ticket in engine.run(asked)]
    assert {bucket.mixed for bucket in replayed[0].used} == {True, False}
    monkeypatch.setattr(building, "ModelRunner", ModelRunner)
    fuse.remove(lm)
    with engine_for(lm, **settings) as engine:
        assert [ticket.first.tokens for ticket in engine.run(asked)] == found


def test_a_model_in_training_mode_is_not_captured():
    model = tiny_llama(0)
    model.model.layers[1].mlp.up_proj.train()  # as a layer put in later is: nothing depends on it
    graphs._check(model)
    model.model.layers[1].train()
    with pytest.raises(LabkitError, match="training"):
        graphs._check(model)


def test_a_watch_notices_what_it_is_for():
    model = tiny_llama(0)
    loosely, closely = Watch(model.modules()), Watch(model.modules(), closely=True)
    assert loosely.same and closely.same
    hook = model.lm_head.register_forward_hook(lambda *_: None)
    assert loosely.same and not closely.same
    hook.remove()
    assert closely.same
    model.lm_head.forward = torch.zeros_like
    assert not loosely.same and not closely.same
    del model.lm_head.forward
    assert loosely.same and closely.same
    layer = model.model.layers[0].mlp.down_proj
    layer.weight.data = layer.weight.data.clone()
    assert loosely.same and not closely.same
    loosely = Watch(model.modules())
    model.model.layers[1].mlp = model.model.layers[0].mlp
    assert not loosely.same
