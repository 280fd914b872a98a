"""The roofline: how fast a phase could go at its arithmetic intensity, and how fast it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.profile import formulas
from labkit.profile.card import Phase, cost_card
from labkit.profile.datasheet import Ceilings


@dataclass(frozen=True)
class RooflinePoint:
    """A phase on the roofline: intensity [FLOP/B], attainable and (where there is one) measured FLOP/s."""

    label: str
    phase: str
    tokens: int
    batch: int
    intensity: float
    attainable: float
    measured: float | None = None

    @property
    def reached(self) -> float | None:
        """Measured ÷ attainable, 0 to 1; None when not measured."""
        return None if self.measured is None else self.measured / self.attainable


def roofline_points(
    model_or_config: Any,
    ceilings: Ceilings,
    *,
    prompts: Sequence[int] = (128, 512, 2048),
    contexts: Sequence[int] = (512,),
    batches: Sequence[int] = (1,),
    prefill_seconds: Mapping[int, float] | None = None,
    decode_seconds: Mapping[int, float] | None = None,
    **card: Any,
) -> list[RooflinePoint]:
    """Points for prefill at each prompt length and for a decode step at each context and batch.

    Args:
        prefill_seconds: measured time by prompt length (one row), where there is one.
        decode_seconds: measured step time by batch, at the first context.
        card: further arguments of `cost_card` (dtype, weight_bytes).
    """
    points = []
    for prompt in prompts:
        phase = cost_card(model_or_config, ceilings, prompt=prompt, **card).prefill
        points.append(
            _point(phase, ceilings, f"prefill {prompt}", prompt, 1, (prefill_seconds or {}).get(prompt))
        )
    for context in contexts:
        for batch in batches:
            phase = cost_card(
                model_or_config, ceilings, prompt=context, context=context, batch=batch, **card
            ).decode
            seconds = (decode_seconds or {}).get(batch) if context == contexts[0] else None
            label = f"decode, batch {batch}" if len(contexts) == 1 else f"decode {context}, batch {batch}"
            points.append(_point(phase, ceilings, label, context, batch, seconds))
    return points


def _point(
    phase: Phase, ceilings: Ceilings, label: str, tokens: int, batch: int, seconds: float | None
) -> RooflinePoint:
    return RooflinePoint(
        label=label,
        phase=phase.name,
        tokens=tokens,
        batch=batch,
        intensity=phase.intensity,
        attainable=formulas.attainable(phase.intensity, ceilings.flops, ceilings.bandwidth),
        measured=None if seconds is None else phase.flops / seconds,
    )
