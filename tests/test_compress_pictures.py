"""What notebook 02 shows: the probe, calibrated models, pictures and tables, with and without a record."""

import copy
import math

import pytest
import torch

from labkit.compress import Format, linears, quantize
from labkit.compress.calibration import calibrate
from labkit.compress.scaled import Scaled
from labkit.course import calibrated, texts
from labkit.course.paces import paces
from labkit.course.plots import compress as plots
from labkit.course.plots import compress_models as maps
from labkit.course.probe import Probe
from labkit.course.tables import compress as tables
from labkit.course.tables import compress_record as records
from labkit.errors import LabkitError
from labkit.models import load

BADGE = {"device": "NVIDIA H200", "date": "2031-02-03", "badge": "recorded on NVIDIA H200, 2031-02-03"}
INT4 = Format("int4", 128, symmetric=False)


@pytest.fixture(scope="module")
def draft():
    return load("labcoder-draft", device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def probe(draft):
    return Probe(draft, pages=4, length=48)


def test_a_model_is_as_good_as_itself(draft, probe):
    same = probe.read(draft)
    assert same.kl == pytest.approx(0, abs=1e-6) and same.agreement == 1 and abs(same.worse.mean) < 1e-6
    assert same.perplexity == pytest.approx(probe.reference.perplexity, rel=1e-6)
    assert same.bits_per_byte == pytest.approx(probe.reference.bits_per_byte, rel=1e-6)


def test_a_worse_model_reads_worse_and_its_interval_holds_the_mean(draft, probe):
    read = probe.read(quantize(draft, Format("int4", tensor=True)))
    assert read.kl > 0.1 and read.agreement < 0.95
    assert read.worse.low <= read.worse.mean <= read.worse.high
    ratio = read.perplexity / probe.reference.perplexity
    assert 1 + read.worse.mean == pytest.approx(ratio, rel=1e-6)


def test_a_probe_refuses_what_it_cannot_read(draft, probe):
    with pytest.raises(LabkitError, match="do not make"):
        Probe(draft, pages=10**6)
    with torch.no_grad():
        broken = quantize(draft, "int8")
        broken.model.model.norm.weight = torch.nn.Parameter(draft.model.model.norm.weight * math.nan)
    with pytest.raises(LabkitError, match="gives NaN"):
        probe.read(broken)


def test_nothing_found_is_plain_rounding(draft):
    ids = torch.arange(30)[None]
    mine, theirs = calibrated.rounded(draft, Scaled(), INT4), quantize(draft, INT4)
    assert torch.equal(mine.model(ids).logits, theirs.model(ids).logits)


def test_scales_alone_change_nothing_and_kept_layers_are_exact(draft):
    found = calibrated.search(draft, calibrate(draft, tokens=512, rows=128), INT4)
    assert found.columns and found.norms
    ids = torch.arange(40)[None]
    whole = calibrated.rounded(draft, found, INT4, dict.fromkeys(linears(draft)))
    assert torch.allclose(whole.model(ids).logits, draft.model(ids).logits, atol=1e-3)
    eight = calibrated.rounded(draft, found, INT4, dict.fromkeys(linears(draft), Format("int8")))
    four = calibrated.rounded(draft, found, INT4)
    assert draft.weight_bytes > eight.weight_bytes > four.weight_bytes


def test_the_matrix_that_was_spoiled_is_blamed(draft):
    name = list(linears(draft))[9]
    spoiled = quantize(draft, "int8", plan={name: Format("int4", tensor=True)})
    before = copy.deepcopy(draft.model.state_dict())
    found = calibrated.blame(draft, spoiled, tokens=96)
    assert list(found)[0] == name and set(found) == set(linears(draft))
    assert all(torch.equal(value, before[key]) for key, value in draft.model.state_dict().items())


def test_paces_are_of_every_model(draft):
    found = paces({"plain": draft, "slim": quantize(draft, "int8")}, list(range(5, 20)), new=3, rounds=1)
    assert set(found) == {"plain", "slim"} and all(0 < seconds < 60 for seconds in found.values())


def compress_record():
    """What `labkit bench compress` writes, as far as the tables read it."""
    paced = {"weight_bytes": 6.7e9, "tpot": 0.002, "tokens_per_second": 500.0, "share": 0.8}
    precision = {
        "bf16": {**paced, "weight_bytes": 13.3e9},
        "int8": paced,
        "w8a8": {"unavailable": "no units"},
    }
    seconds = {"bf16": {"1": 4.0, "16": 4.0}, "int8": {"1": 2.0, "16": 5.0}, "int4": {"1": 1.0, "16": 2.0}}
    return {
        **BADGE,
        "figures": {
            "model": "labcoder@7b",
            "own": "bf16",
            "precision": precision,
            "bitsandbytes": {"bitsandbytes int8": {"unavailable": "no such extra"}},
            "batch": {"seconds": seconds},
        },
    }


def test_recorded_precisions_stand_beside_labcoders_quality(probe):
    words = texts.words("02_compress")
    shown = str(records.precisions(compress_record(), {"bf16": probe.reference}))
    assert words["the_reference"] in shown and "500" in shown and "80%" in shown and "w8a8" not in shown
    assert "H200" in shown
    assert records.precisions({**BADGE, "figures": {"precision": {"unavailable": "why"}}}, {}) is None


def test_the_crossing_is_the_first_size_that_gains_nothing():
    own, curves = records.curve(compress_record())
    assert own == "bf16" and records.crossing(own, curves, "int8") == 16
    assert records.crossing(own, curves, "int4") is None
    assert records.curve({**BADGE, "figures": {"batch": {"unavailable": "why"}, "own": "bf16"}}) is None
    plots.crossing(own, curves, "title")


def test_recorded_places_know_what_labcoder_lost():
    found = records.places(compress_record(), {"int8": 0.25})
    assert [(place.name, place.loss) for place in found] == [("bf16", 0.0), ("int8", 0.25)]


def distil_record():
    """What `labkit bench distil` writes, as far as the tables read it."""
    spread = {"mean": 1.25, "low": 1.2, "high": 1.3}
    one = {"bits_per_byte": spread, "share": {"mean": 0.77}}
    ablation = {
        "summary": {"outputs": one, "all": one},
        "margins": {"all": {"mean": -0.01, "low": -0.02, "high": -0.004}},
    }
    students = {
        "narrow": {"size": 0.3, "share": 0.88, "agreement": 0.7},
        "large": {"size": 0.6, "share": 0.99, "agreement": 0.9},
    }
    return {
        **BADGE,
        "figures": {"ablation": ablation, "students": students, "speed": {"speedup": {"narrow": {"1": 2.5}}}},
    }


def test_recorded_students():
    entry = distil_record()
    words = texts.words("02_compress")
    shown = str(records.distilled(entry))
    assert words["base"] in shown and "-0.0100 (-0.0200 … -0.0040)" in shown
    assert "2.50 ×" in str(records.students(entry))
    assert records.claim_9(entry["figures"]) == words["student_is"].format(share=0.3, quality=0.88, speed=2.5)
    empty = {**BADGE, "figures": {}}
    assert records.distilled(empty) is None and records.students(empty) is None
    assert records.claim_9({}) == records.claim_10({}) == "–"


def test_recorded_qualities():
    moved, kl, top1 = ({"mean": mean, "low": mean, "high": mean} for mean in (0.025, 0.001, 0.9))
    one = {"weight_bytes": 22e6, "perplexity_change": moved, "kl": kl, "top1": top1}
    found = {"tokens": 32000, "methods": {"int4": one, "bitsandbytes nf4": {"unavailable": "why"}}}
    shown = str(records.qualities({**BADGE, "figures": {"quality": found}}))
    assert "32,000" in shown and "+2.50 % (+2.5 … +2.5)" in shown and "90.0%" in shown and "nf4" not in shown
    assert records.qualities({**BADGE, "figures": {}}) is None


def test_recorded_pruning():
    spread = {"mean": 20.0, "low": 18.0, "high": 22.0}
    figures = {
        "summary": {"taylor": {"cut": spread, "recovered": {**spread, "mean": 12.0}}},
        "base": {"perplexity": 10.0},
        "speed": {"whole": [2.0, 3.0, 2.0], "pruned": [1.0]},
    }
    assert "20.00 (18.00 … 22.00)" in str(records.pruning({**BADGE, "figures": figures}))
    said = texts.words("02_compress")["pruned_is"]
    assert records.claim_10(figures) == said.format(cut=2.0, recovered=1.2, speed=2.0)


def test_short_names_and_intervals(probe):
    assert tables.short("model.layers.2.mlp.down_proj") == "2 down"
    assert tables.worse(probe.reference) == texts.words("02_compress")["the_reference"]
    damage = str(tables.damage({"model.layers.0.self_attn.o_proj": 0.0123}))
    assert "0 o" in damage and "12.3" in damage


def test_pictures_say_what_was_measured():
    drawn = plots.grid([0.1, -0.2, 0.3], [0.1, -0.2, 0.2], "row")
    assert "3 different values" in drawn.axes[0].get_title(loc="left")
    line = plots.ratios([0, 0.5, 1], {"a": [0.2, 0.1, 0.9]}, "error").axes[0].lines
    assert line[1].get_xdata()[0] == 0.5  # the ring is around the best
    assert len(plots.channels([1.0, 2.0], "title").axes[0].patches) == 2
    spot = plots.Spot("a", 1e6, 0.1, 0.05, 0.2)
    assert plots.budget([spot], [spot], ["x", "y"]).axes[0].get_legend_handles_labels()[1] == ["x", "y"]
    places = [
        maps.Place(str(n), "bits", 1e6, speed, loss)
        for n, (speed, loss) in enumerate([(1, 0), (2, 1), (1, 2)])
    ]
    assert [place.name for place in maps.front(places)] == ["0", "1"]
