"""A latency report: the same request several times through the plain loop, in the course's terms."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import LabkitError
from labkit.profile.loop import Prompt, generate
from labkit.profile.streaming import silent_tokens
from labkit.timing import Clock, Latency, Measurement, counted, duration, percentile

if TYPE_CHECKING:
    from labkit.models import LM


@dataclass(frozen=True)
class LatencyReport:
    """Repeats of one request. Times in seconds; every run keeps its stamps."""

    model: str
    prompt_tokens: int
    new_tokens: int
    text: str
    runs: tuple[Latency, ...]

    @property
    def ttft(self) -> Measurement:
        """Time to first token of each run."""
        return Measurement(tuple(run.ttft for run in self.runs))

    @property
    def tpot(self) -> Measurement:
        """Time per output token of each run.

        Raises:
            LabkitError: no run has two tokens with text, so there is no pace.
        """
        paces = tuple(run.tpot for run in self.runs if run.tpot is not None)
        if not paces:
            raise LabkitError(
                "With a single token there is no time per output token.", "Generate at least two."
            )
        return Measurement(paces)

    @property
    def e2e(self) -> Measurement:
        """End to end of each run."""
        return Measurement(tuple(run.e2e for run in self.runs))

    @property
    def itl(self) -> tuple[float, ...]:
        """Every gap between consecutive tokens, pooled over the runs."""
        return tuple(gap for run in self.runs for gap in run.itl)

    @property
    def typical(self) -> Latency:
        """The run whose E2E is the median one: its own TTFT and TPOT fit together exactly."""
        return sorted(self.runs, key=lambda run: run.e2e)[(len(self.runs) - 1) // 2]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of the typical run ÷ its E2E, the first token's wait included."""
        return self.typical.tokens / self.typical.e2e

    def __str__(self) -> str:
        run, gaps = self.typical, self.itl
        lines = [
            f"{self.model}: {counted(self.prompt_tokens, 'prompt token')}, {self.new_tokens} new, "
            f"{counted(len(self.runs), 'run')}",
            f"  TTFT  {self.ttft}   sent → first token with text",
        ]
        if run.tpot is not None:
            lines += [
                f"  TPOT  {self.tpot}   (E2E − TTFT) ÷ (n − 1)",
                f"  ITL   p50 {duration(percentile(gaps, 50))}, p99 {duration(percentile(gaps, 99))}, "
                f"max {duration(max(gaps))}   every gap, pooled",
                f"  E2E   {self.e2e}   sent → last token",
                f"        median run (the one whose E2E is the median): {duration(run.ttft)} + "
                f"{duration(run.tpot)} × {run.tokens - 1} = {duration(run.e2e)}",
            ]
        return "\n".join(
            [*lines, f"  rate  {self.tokens_per_second:.1f} tokens/s   n ÷ E2E of the median run"]
        )

    __repr__ = __str__  # the last line of a notebook's cell shows this


def latency_report(
    lm: LM,
    prompt: Prompt,
    new_tokens: int,
    *,
    repeats: int = 5,
    warmup: int = 1,
    clock: Clock = time.perf_counter,
) -> LatencyReport:
    """Run one request `repeats` times after a warm-up.

    Args:
        prompt: text (its tokenisation is then part of TTFT) or token ids.
        new_tokens: exactly this many are generated, whatever they say.

    Raises:
        LabkitError: repeats < 1, an empty prompt, or too many tokens for the model.
    """
    if repeats < 1:
        raise LabkitError(f"{repeats} repeats give no report.", "Ask for at least one.")
    for _ in range(warmup):
        generate(lm, prompt, min(new_tokens, 4))
    made = [generate(lm, prompt, new_tokens, clock=clock) for _ in range(repeats)]
    tokens = list(made[0].ids)
    silent = silent_tokens(lm.tokenizer, tokens)
    return LatencyReport(
        model=lm.name,
        prompt_tokens=made[0].prompt_tokens,
        new_tokens=new_tokens,
        text=lm.decode(tokens),
        runs=tuple(dataclasses.replace(one.latency, silent=silent) for one in made),
    )
