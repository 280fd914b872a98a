"""How a cost card reads: one quantity a line, its formula with the numbers put in beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.timing import duration

if TYPE_CHECKING:
    from labkit.profile.card import CostCard, Phase


def amount(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix: 1.35e10 B is "13.5 GB"."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
            shown = value / scale
            return f"{shown:.3g} {prefix}{unit}" if shown < 999.5 else f"{shown:,.0f} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def render(card: CostCard) -> str:
    """The card as text, a number and its formula on each line."""
    head = (
        f"{card.name}, {card.dtype}, on {card.ceilings.name}: "
        f"prompt {card.prompt}, context {card.context}, batch {card.batch}"
    )
    rows = [*_storage(card), *_device(card), *_phase(card, card.prefill), *_phase(card, card.decode)]
    left = max(len(label) for label, _, _ in rows)
    middle = max(len(value) for _, value, _ in rows)
    lines = [f"  {label:<{left}}  {value:>{middle}}  {formula}" for label, value, formula in rows]
    notes = [f"  note: {card.ceilings.note}"] if card.ceilings.note else []
    if card.dtype != card.ceilings.dtype:
        notes.append(f"  note: the weights are {card.dtype}, the peak is for {card.ceilings.dtype}")
    if card.shape.assumed:
        notes.append(
            f"  note: {card.shape.family} is read as a Llama; its norms and biases may differ slightly"
        )
    return "\n".join([head, *lines, *notes])


def _storage(card: CostCard) -> list[tuple[str, str, str]]:
    shape = card.shape
    element = card.kv_bytes_per_token / (2 * shape.layers * shape.kv_heads * shape.head_dim)
    tables = "one table, tied" if shape.tied else "two tables"
    matrices = "gate/up/down" if shape.gated else "up/down"
    sliding = "" if not any(shape.windows) else " (sliding layers keep their window)"
    return [
        (
            "parameters",
            amount(shape.parameters, ""),
            f"{shape.layers} × ({amount(shape.attention_matrix, '')} attention + "
            f"{amount(shape.mlp_matrix, '')} {matrices}) + {shape.vocab} × {shape.hidden}, {tables}",
        ),
        ("weights", amount(card.weight_bytes, "B"), "stored bytes, tied tables counted once"),
        (
            "weights read",
            amount(card.weight_bytes_read, "B"),
            "weights − input tables that are only looked up",
        ),
        (
            "KV per token",
            amount(card.kv_bytes_per_token, "B"),
            f"2 × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim} × {element:g} B",
        ),
        (
            "KV at context",
            amount(card.kv_bytes, "B"),
            f"KV per token × {card.context} tokens × batch {card.batch}{sliding}",
        ),
    ]


def _device(card: CostCard) -> list[tuple[str, str, str]]:
    device = card.ceilings
    return [
        ("bandwidth", amount(device.bandwidth, "B/s"), device.source),
        ("peak", amount(device.flops, "FLOP/s"), f"the same, in {device.dtype}"),
        ("ridge", f"{card.ridge:.3g} FLOP/B", "peak ÷ bandwidth"),
    ]


def _phase(card: CostCard, phase: Phase) -> list[tuple[str, str, str]]:
    shape, prefill = card.shape, phase.name == "prefill"
    tokens = card.prompt if prefill else 1
    pairs = "n(n+1)/2" if prefill else f"{card.context}"
    body, rows = amount(shape.body_matrix, ""), f"batch {card.batch}"
    work = (
        f"{rows} × (2 × {body} × {tokens} + 2 × {amount(shape.head_matrix, '')}"
        f" + 4 × {shape.layers} × {shape.heads} × {shape.head_dim} × {pairs})"
    )
    moved = "weights read + KV written" if prefill else "weights read + KV read"
    side = "above" if phase.intensity >= card.ridge else "below"
    return [
        (f"{phase.name} FLOPs", amount(phase.flops, "FLOP"), work),
        (f"{phase.name} bytes", amount(phase.bytes, "B"), moved),
        (
            f"{phase.name} intensity",
            f"{phase.intensity:.3g} FLOP/B",
            f"FLOPs ÷ bytes: {side} the ridge, so {phase.bound}-bound",
        ),
        (
            "floor TTFT" if prefill else "floor TPOT",
            duration(phase.floor),
            f"max(FLOPs ÷ peak = {duration(phase.compute_seconds)}, bytes ÷ bandwidth = "
            f"{duration(phase.memory_seconds)})",
        ),
    ]
