"""`labkit bench distil`: what each ingredient of distillation adds, and how good, small and fast students are.

The record, in figures (times in seconds; "runs" hold every repeat; what could not run is {"unavailable": why}):

    model, dtype, plan; seconds: part → how long it took; carried: part → where it is from, as in `labkit bench fuse`
    ablation: see labkit.compress.distil.study.ablation
    students: shape (of SHAPES) → variant (the ablation's best), start, parameters, bytes (in the teacher's precision),
        size (parameters ÷ the teacher's), seconds, tokens, curve, perplexity, bits_per_byte, share, behind, kl,
        agreement: trained longer than in the ablation
    speed: sizes; "teacher" or shape → runs: rows → seconds of a decode step through the engine, fused and with graphs,
        and median: rows → seconds; speedup: shape → rows → times as fast as the teacher
    saved: folder, shape, bytes of its weights on disk

The part "saved" writes data/labcoder-student: the best of the students whose weights take at most 4 MiB.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit import fuse, paths, results
from labkit.batch.bench import release
from labkit.batch.bench_parts import Parts, carry, chosen, measure, say
from labkit.batch.explore import decode_curve
from labkit.compress.distil import SHAPES, Settings, cast, distil, parameters, student
from labkit.compress.distil.study import BASE, VARIANTS, Judged, ablation, figured, step_seconds
from labkit.compress.text import training_tokens
from labkit.errors import LabkitError
from labkit.models import LM, load
from labkit.models.packed_checkpoint import save
from labkit.quality import evaluation_text, score

MOST_BYTES = 4 << 20
"""Of the weights of a student that goes into the repository."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the benchmark.

    Args:
        pool: tokens of training text.
        settings: of every training; its steps are the most that the ablation takes.
        seeds, seconds: of the ablation; the seconds are for its trainings together.
        shape: of the ablation's students.
        longer: seconds for each of the students that are trained at length.
        rows, rounds: of the decode curve.
    """

    pool: int
    settings: Settings
    seeds: tuple[int, ...] = (0, 1, 2)
    seconds: float = 120.0
    shape: str = "narrow"
    longer: float = 60.0
    rows: tuple[int, ...] = (1, 16, 256)
    rounds: int = 3


def plan_for(device_type: str) -> Plan:
    """For about four minutes of ablation and as much for the rest on an H200; a quarter of an hour on two CPU cores."""
    if device_type == "cuda":
        return Plan(3_000_000, Settings(steps=1500, batch=64, length=256, every=50, held_out=128))
    settings = Settings(steps=40, batch=4, length=128, every=10, held_out=16)
    return Plan(100_000, settings, seeds=(0,), seconds=60, longer=20, rows=(1, 4))


@dataclass
class Kitchen:
    """What all parts need: the teacher, the training text and, once they are trained, the students by shape."""

    lm: LM
    plan: Plan
    tokens: Tensor
    best: str
    students: dict[str, LM] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


def _ablation(kitchen: Kitchen) -> dict[str, Any]:
    plan = kitchen.plan
    found = ablation(
        kitchen.lm, kitchen.tokens, evaluation_text(), plan.settings, shape=SHAPES[plan.shape], seeds=plan.seeds,
        seconds=plan.seconds, say=say,
    )  # fmt: skip
    kitchen.best = found["best"]
    say(f"  best on held-out training text: {kitchen.best}")
    return found


def _students(kitchen: Kitchen) -> dict[str, Any]:
    """Each shape, trained at length with the best variant."""
    lm, plan, text = kitchen.lm, kitchen.plan, evaluation_text()
    base, changes = score(lm, text), VARIANTS[kitchen.best]
    for shape, sizes in SHAPES.items():
        steps = int(plan.longer / step_seconds(lm, kitchen.tokens, plan.settings, sizes, changes))
        settings = replace(plan.settings, **changes, steps=max(steps, 1), every=max(steps // 20, 1))
        small = student(lm, **sizes, tokens=kitchen.tokens)
        history = distil(lm, small, kitchen.tokens, settings)
        kitchen.figures[shape] = {
            "variant": kitchen.best, "start": "teacher", "parameters": parameters(small.model),
            "bytes": small.weight_bytes, "size": parameters(small.model) / parameters(lm.model), "steps": steps,
            **figured(history), **Judged.of(lm, small, text).figures(base),
        }  # fmt: skip
        kitchen.students[shape], one = small, kitchen.figures[shape]
        say(
            f"  {shape:<14} {one['size']:.0%} of the parameters, {one['bits_per_byte']:.3f} bits per byte, "
            f"{one['share']:.1%} of the teacher's, after {one['tokens'] / 1e6:.1f}M tokens"
        )
    return dict(kitchen.figures)


def _speed(kitchen: Kitchen) -> dict[str, Any]:
    """A decode step of the teacher and of each shape, in rounds; what the weights are does not matter."""
    lm, plan = kitchen.lm, kitchen.plan
    text = lm.encode(evaluation_text())[0].tolist()
    models = {"teacher": lm} | {name: student(lm, **sizes, start="random") for name, sizes in SHAPES.items()}
    found: dict[str, Any] = {
        "rows": plan.rows,
        **{name: {"runs": {rows: [] for rows in plan.rows}} for name in models},
    }
    for number in range(plan.rounds):
        for name in models if number % 2 == 0 else reversed(models):
            try:
                fuse.apply(models[name])
                curve, _ = decode_curve(models[name], text, plan.rows, rounds=1, seed=number, graphs=True)
            finally:
                fuse.remove(models[name])
                release(lm)
            for rows, seconds in curve.items():
                found[name]["runs"][rows].append(seconds)
    for name in models:
        found[name]["median"] = {rows: statistics.median(runs) for rows, runs in found[name]["runs"].items()}
    pace = found["teacher"]["median"]
    found["speedup"] = {
        name: {rows: pace[rows] / seconds for rows, seconds in found[name]["median"].items()}
        for name in SHAPES
    }
    for name, gains in found["speedup"].items():
        say(f"  {name:<14} " + ", ".join(f"{rows} rows: {gain:.2f} ×" for rows, gain in gains.items()))
    return found


def _saved(kitchen: Kitchen, folder: Path | None = None) -> dict[str, Any]:
    """Write the best student that is small enough, in bf16."""
    import torch

    fitting = [name for name in kitchen.students if 2 * kitchen.figures[name]["parameters"] <= MOST_BYTES]
    if not fitting:
        raise LabkitError(
            "No student was trained that is small enough to keep.", 'Run the part "students" too.'
        )
    # by held-out training text: the evaluation text has no part in the choice
    shape = min(fitting, key=lambda name: kitchen.figures[name]["curve"][-1]["bits_per_byte"])
    small, target = kitchen.students[shape], folder or paths.data() / "labcoder-student"
    cast(small.model, torch.bfloat16)
    save(replace(small, dtype=torch.bfloat16), target)
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    say(f"  {shape}: {size / 2**20:.2f} MiB")
    return {"folder": target.name, "shape": shape, "bytes": size}


PARTS: Parts = {"ablation": _ablation, "students": _students, "speed": _speed, "saved": _saved}


def run(
    model: str = "auto", device: str | None = None, plan: Plan | None = None, *, only: str = ""
) -> dict[str, Any]:
    """Measure, print each result at once and a line of JSON at the end, and return all figures.

    Args:
        model: the teacher; "auto" means labcoder.
        only: parts, separated by commas; all when empty. "saved" needs "students". The others are kept from a record
            that is there.
    """
    names = chosen(only, PARTS)
    lm = load("labcoder" if model == "auto" else model, device=device)
    plan = plan or plan_for(lm.device.type)
    before = results.load("distil", results.slugify(results.device_name(device))) or {"figures": {}}
    best = (before["figures"].get("ablation") or {}).get("best", BASE)
    kitchen = Kitchen(lm, plan, training_tokens(lm, plan.pool), best)
    figures: dict[str, Any] = {
        "model": lm.name,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "plan": asdict(plan),
        "seconds": {},
        "carried": {},
    }
    measure(names, PARTS, kitchen, figures)
    carry("distil", PARTS, figures, device)
    print(json.dumps(_headline(figures)))
    return figures


def _headline(figures: dict[str, Any]) -> dict[str, Any]:
    """What the last line says."""
    summary = (figures.get("ablation") or {}).get("summary") or {}
    students = figures.get("students") or {}
    speedup = (figures.get("speed") or {}).get("speedup") or {}
    return {
        "bench": "distil",
        "model": figures["model"],
        "bits_per_byte": {name: round(one["bits_per_byte"]["mean"], 4) for name, one in summary.items()},
        "share": {name: round(one["share"], 3) for name, one in students.items() if "share" in one},
        "speedup": {
            name: {rows: round(gain, 2) for rows, gain in one.items()} for name, one in speedup.items()
        },
    }
