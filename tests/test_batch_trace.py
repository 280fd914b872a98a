"""Request traces: written, read again, recorded from an engine, and refused with the line that is wrong."""

import random

import pytest

from labkit import paths
from labkit.batch import trace
from labkit.batch.explore import virtual_engine
from labkit.batch.replay import replay
from labkit.batch.virtual import CostModel
from labkit.batch.workload import skewed, workload
from labkit.errors import LabkitError

TEXT = list(range(3000))
LUNCH = {"prompts": (16, 96), "outputs": skewed((6, 14), (40, 64), 0.25), "rate": 40, "seed": 24}


def shape(arrivals):
    return [
        (round(a.at, 4), len(a.request.prompt), a.request.max_tokens, a.request.priority) for a in arrivals
    ]


def test_a_trace_comes_back_as_it_was_written(tmp_path):
    load = workload(TEXT, 40, prompts=(1, 70), outputs=(1, 30), rate=5, seed=random.randrange(10**6))
    trace.write(tmp_path / "t.csv", load)
    again = trace.read(tmp_path / "t.csv", TEXT, seed=3)
    assert shape(again) == shape(load)
    assert again == trace.read(tmp_path / "t.csv", TEXT, seed=3)
    assert again != trace.read(tmp_path / "t.csv", TEXT, seed=4)
    for one in again:  # a piece of the text
        assert list(one.request.prompt) == TEXT[one.request.prompt[0] :][: len(one.request.prompt)]


def test_what_an_engine_served_can_be_replayed_with_the_same_times(tmp_path):
    load = workload(TEXT, 30, prompts=(5, 60), outputs=(2, 20), rate=50, seed=1)
    costs = CostModel(step=0.01, token=0.0005)
    served = replay(virtual_engine(costs, share=False), load)
    trace.write(tmp_path / "t.csv", trace.record(served.tickets))
    again = replay(virtual_engine(costs, share=False), trace.read(tmp_path / "t.csv", TEXT))
    first = load[0].at  # a record begins with the first arrival
    assert again.tokens == served.tokens
    assert again.seconds == pytest.approx(served.seconds - first, abs=1e-3)


def test_the_lunch_is_what_its_description_says():
    lunch = trace.read(paths.data() / "traces" / "lunch.csv", TEXT)
    assert shape(lunch) == shape(workload(TEXT, 24, **LUNCH))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("arrival_s,prompt_tokens\n0,3\n", "no column output_tokens"),
        ("", "no column arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens\n0,3,4\nsoon,3,4\n", "line 3 is not a request"),
        ("arrival_s,prompt_tokens,output_tokens\n0,3\n", "line 2 is not a request"),
        ("arrival_s,prompt_tokens,output_tokens\n0,3.5,4\n", "line 2 is not a request"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,3,4\n", "line 2"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,3,4\n", "line 2"),
        ("arrival_s,prompt_tokens,output_tokens\n0,3,0\n", "line 2"),
        ("arrival_s,prompt_tokens,output_tokens\n0,3000,1\n", "has no prompt of 3000"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, said):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(LabkitError, match=said):
        trace.read(tmp_path / "t.csv", TEXT)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00arrival")
    with pytest.raises(LabkitError, match="no CSV text"):
        trace.read(tmp_path / "t.csv", TEXT)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LabkitError, match="cannot be read"):
        trace.read(tmp_path / "none.csv", TEXT)
