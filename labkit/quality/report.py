"""`labkit eval`: the figures of a model card, reproduced on this machine."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

from labkit.errors import LabkitError
from labkit.models import LM, load
from labkit.quality.comparison import compare
from labkit.quality.scoring import CONTEXT, STRIDE, Score, score
from labkit.quality.text import evaluation_files
from labkit.timing import Measurement, synchronize

DEFAULT = ("labcoder", "labcoder-draft")
REFERENCE = "labcoder"
TEXTS = ("fixed", "stdlib")
EDGES = (1024, 2048, 4096, 8192, 16_384)
"""Tokens read: bits per byte by position are given between these."""

PROMPT = 64
STEPS = 32
ROUNDS = 5


def evaluate(
    models: list[str],
    json_path: str | Path | None = None,
    *,
    device: str | None = None,
    context: int = CONTEXT,
    stride: int = STRIDE,
) -> dict[str, Any]:
    """Measure models on both evaluation texts, print a table, and write JSON if a path is given.

    Args:
        models: names that `load` takes; empty means labcoder and its draft.
        json_path: where to write the figures.
        device: as for `load`.
        context, stride: of the windows [tokens].

    Returns:
        {"texts": …, "models": {name: {text: figures, "decode_ms": …, "positions": …}}, versions …}

    Raises:
        LabkitError: as `load` does, or the folder of json_path does not exist.
    """
    if json_path is not None and not Path(json_path).expanduser().parent.is_dir():
        raise LabkitError(
            f"The folder of {json_path} does not exist.", "Create it first, or give another path."
        )
    console = Console()
    texts = {name: evaluation_files(name) for name in TEXTS}
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "context": context,
        "stride": stride,
        "texts": {
            name: {
                "bytes": sum(len(text.encode()) for _, text in files),
                "modules": [module for module, _ in files],
            }
            for name, files in texts.items()
        },
        "models": {},
    }
    joined = {name: "".join(text for _, text in files) for name, files in texts.items()}
    reference = load(REFERENCE, device=device)
    for name in models or DEFAULT:
        console.print(f"[dim]measuring {name} …[/dim]")
        lm = reference if name == REFERENCE else load(name, device=device)
        report["models"][lm.name] = _measure(lm, reference, joined, context, stride)
    _show(console, report)
    if json_path is not None:
        Path(json_path).expanduser().write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _measure(lm: LM, reference: LM, texts: dict[str, str], context: int, stride: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"device": str(lm.device), "dtype": str(lm.dtype).removeprefix("torch.")}
    figures["decode_ms"] = _decode(lm, texts["fixed"])  # before the long work heats a laptop
    shares_tokens = lm is not reference and lm.tokenizer.get_vocab() == reference.tokenizer.get_vocab()
    long_context = min(EDGES[-1], getattr(lm.config, "max_position_embeddings", EDGES[-1]))
    short, long = [], []
    for name, text in texts.items():
        scored = score(lm, text, context=context, stride=stride)
        short.append(scored)
        long.append(score(lm, text, context=long_context, stride=long_context))
        figures[name] = {
            "tokens": len(scored.nats),
            "bits_per_byte": scored.bits_per_byte,
            "perplexity": scored.perplexity,
        }
        if shares_tokens:
            found = compare(reference, lm, text, context=context, stride=stride)
            figures[name] |= {"top1_agreement": found.top1_agreement, "kl_divergence": found.kl_divergence}
    figures["positions"] = _by_position(long, short)
    return figures


def _by_position(long: list[Score], short: list[Score]) -> list[dict[str, Any]]:
    """Bits per byte by tokens read, beside those of the very same tokens in the short windows.

    Text differs in difficulty from place to place; only the comparison on the same tokens shows whether
    a long context helps or hurts.
    """
    rows = []
    for low, high in zip((0, *EDGES), EDGES, strict=False):
        masks = [(low < each.seen) & (each.seen <= high) for each in long]
        tokens = sum(int(mask.sum()) for mask in masks)
        if tokens:
            here, same = (_pooled(scores, masks) for scores in (long, short))
            rows.append({"above": low, "up_to": high, "tokens": tokens, "bits_per_byte": here, "short": same})
    return rows


def _pooled(scores: list[Score], masks: list[torch.Tensor]) -> float:
    parts = [each.where(mask) for each, mask in zip(scores, masks, strict=True) if mask.any()]
    nothing = torch.zeros(0, dtype=torch.long)
    nats, sizes = torch.cat([part.nats for part in parts]), torch.cat([part.bytes for part in parts])
    return Score(nats, sizes, nothing, nothing, 0, 0).bits_per_byte


@torch.no_grad()
def _decode(lm: LM, text: str) -> dict[str, float]:
    """Milliseconds of one greedy token with transformers' own cache: median, 10th and 90th percentile."""
    prompt = lm.encode(text)[:, :PROMPT]
    seconds: list[float] = []
    for turn in range(ROUNDS + 1):
        cache = DynamicCache(config=lm.model.config)
        token = lm.model(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)
        for _ in range(STEPS):
            synchronize(lm.device)
            start = time.perf_counter()
            token = lm.model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            synchronize(lm.device)
            if turn:  # the first turn warms up
                seconds.append(time.perf_counter() - start)
    taken = Measurement(tuple(seconds))
    return {"median": taken.median * 1e3, "low": taken.low * 1e3, "high": taken.high * 1e3}


def _show(console: Console, report: dict[str, Any]) -> None:
    """Print both tables, narrow enough for 80 columns."""
    table = Table(
        title=f"Evaluation, standard library of Python {report['python']}",
        caption=f"windows of {report['context']} tokens, stride {report['stride']}; agrees: same likeliest token "
        f"as {REFERENCE}; ms/token: median (10–90 %)",
    )
    for heading in ("model", "text", "bits/byte", "perplexity", "agrees", "ms/token"):
        table.add_column(heading, justify="left" if heading in ("model", "text") else "right", no_wrap=True)
    for name, figures in report["models"].items():
        decode = figures["decode_ms"]
        speed = f"{decode['median']:.1f} ({decode['low']:.1f}–{decode['high']:.1f})"
        for text in TEXTS:
            row = figures[text]
            agreement = f"{row['top1_agreement']:.1%}" if "top1_agreement" in row else "–"
            values = (f"{row['bits_per_byte']:.3f}", f"{row['perplexity']:.2f}", agreement)
            first = text == TEXTS[0]
            table.add_row(name if first else "", text, *values, speed if first else "")
    console.print(table)
    positions = Table(
        title="Bits per byte by tokens read",
        caption="in brackets: the same tokens in the short windows, so the pair shows what long context does",
    )
    positions.add_column("model", no_wrap=True)
    for low, high in zip((0, *EDGES), EDGES, strict=False):
        positions.add_column(f"{low // 1024}–{high // 1024}k", justify="right")
    for name, figures in report["models"].items():
        cells = [f"{row['bits_per_byte']:.3f}\n({row['short']:.3f})" for row in figures["positions"]]
        positions.add_row(name, *cells)
    console.print(positions)
