"""What `stage_report` found, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.timing import Measurement, counted, duration

STAGES = ("preprocessing", "compile", "prefill", "decode", "sampling", "postprocessing")


@dataclass(frozen=True)
class StageRun:
    """One request: seconds in each stage and in all."""

    seconds: dict[str, float]
    e2e: float


@dataclass(frozen=True)
class StageReport:
    """Stages of one request [s]; the shown run is the one with the median total.

    Of an even number it is the faster of the two in the middle, a run that really happened: its stages add up.

    Args:
        backend: torch.compile's backend, or None when it was off.
        first: the first request after torch.compile, which paid for it.
        runs: synchronised at stage borders. `unsynchronised_runs`: the same, without.
    """

    model: str
    device: str
    prompt_tokens: int
    new_tokens: int
    text: str
    backend: str | None
    first: StageRun | None
    runs: tuple[StageRun, ...]
    unsynchronised_runs: tuple[StageRun, ...]

    @property
    def steady(self) -> StageRun:
        """The synchronised run with the median total, nothing compiled in it."""
        return _middle(self.runs)

    @property
    def compile_seconds(self) -> float:
        """What the first request took longer than a steady one; 0 when torch.compile was off."""
        return max(0.0, self.first.e2e - self.steady.e2e) if self.first else 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage, in order. With torch.compile they are a first request's."""
        return {**self.steady.seconds, "compile": self.compile_seconds}

    @property
    def e2e(self) -> float:
        """End to end [s]: of a first request when torch.compile was on."""
        return self.steady.e2e + self.compile_seconds

    @property
    def remainder(self) -> float:
        """End to end less all stages [s]: the loop, the cache's creation and the clocks."""
        return self.e2e - sum(self.stages.values())

    @property
    def shares(self) -> dict[str, float]:
        """Each stage's part of the end-to-end time, and the remainder's: they add up to 1."""
        return {
            name: seconds / self.e2e for name, seconds in {**self.stages, "remainder": self.remainder}.items()
        }

    @property
    def unsynchronised(self) -> dict[str, float]:
        """Stages of the median run without waiting at borders: where blame falls, not where time goes."""
        return dict(_middle(self.unsynchronised_runs).seconds)

    @property
    def sync_cost(self) -> float:
        """Total of the shown run that waits less that of the one that does not [s]; noise can make it negative."""
        return self.steady.e2e - _middle(self.unsynchronised_runs).e2e

    @property
    def noise(self) -> float:
        """Spread of the totals [s], 10th to 90th percentile, with waiting or without: whichever is larger."""
        return max(_spread(self.runs), _spread(self.unsynchronised_runs))

    def __str__(self) -> str:
        blamed = {**self.unsynchronised, "remainder": None}
        which = "median" if len(self.runs) % 2 else "middle"
        lines = [
            f"{self.model} on {self.device}: {counted(self.prompt_tokens, 'prompt token')}, "
            f"{self.new_tokens} new, {which} of {counted(len(self.runs), 'run')}",
            f"  {'stage':<15} {'time':>9} {'share':>7}   without waiting at borders",
        ]
        for name, seconds in {**self.stages, "remainder": self.remainder}.items():
            other = blamed[name]
            lines.append(
                f"  {name:<15} {duration(seconds):>9} {self.shares[name]:>7.1%}   "
                f"{'' if other is None else duration(other)}".rstrip()
            )
        lines.append(f"  {'end to end':<15} {duration(self.e2e):>9}   stages + remainder")
        if self.backend is None:
            lines.append("  compile is off, so its stage is zero")
        else:
            lines.append(
                f"  compile ({self.backend}) is paid once, by the first request; "
                f"a later one takes {duration(self.steady.e2e)}"
            )
        cost = duration(self.sync_cost) if self.sync_cost > self.noise else "less than the noise"
        lines.append(f"  waiting at stage borders cost {cost} (total with − total without)")
        return "\n".join(lines)

    __repr__ = __str__  # the last line of a notebook's cell shows this


def _spread(runs: tuple[StageRun, ...]) -> float:
    totals = Measurement(tuple(run.e2e for run in runs))
    return totals.high - totals.low


def _middle(runs: tuple[StageRun, ...]) -> StageRun:
    return sorted(runs, key=lambda run: run.e2e)[(len(runs) - 1) // 2]
