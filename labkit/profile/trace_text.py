"""How a trace's summary reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.profile.card_text import amount
from labkit.timing import duration, percentile

if TYPE_CHECKING:
    from labkit.profile.timeline import Span
    from labkit.profile.tracer import Trace


def render(trace: Trace) -> str:
    """Busy and idle time, why it was idle, copies, waits, and the heaviest kernels."""
    on_gpu = trace.device.startswith("cuda")
    unit = "kernels" if on_gpu else "operators"
    causes = trace.causes()
    lines = [
        f"{trace.device}: {duration(trace.seconds)} traced ({duration(trace.untraced_seconds)} untraced), "
        f"{len(trace.kernels)} {unit}",
        f"  busy   {duration(trace.busy_seconds):>9}  {1 - trace.gap_share:6.1%}",
        f"  idle   {duration(trace.idle):>9}  {trace.gap_share:6.1%}  {_gap_line(trace)}",
    ]
    if on_gpu:
        lines += [
            f"    {name:<10} {duration(causes[name]):>9}  {words}"
            for name, words in (
                ("python", "the host ran Python between operators"),
                ("launching", "the host was inside an operator, preparing launches"),
                ("waiting", "the host had waited for the device, so nothing was queued"),
            )
        ]
    else:
        lines.append("    on a CPU the gaps between operators are Python")
    if trace.untraced_gap_share is not None:
        lines.append(f"  untraced, the same kernels leave the device idle {trace.untraced_gap_share:.1%}")
    lines.append(f"  copies {len(trace.copies):>9}  {_sum(trace.copies)}")
    lines.append(
        f"  waits  {len(trace.synchronisations):>9}  {_sum(trace.synchronisations)}{_where(trace, on_gpu)}"
    )
    lines.append(f"  heaviest {unit}:")
    lines += [
        f"    {duration(seconds):>9}  {count:>5} ×  {name[:80]}" for name, count, seconds in trace.top()
    ]
    return "\n".join(lines)


def _gap_line(trace: Trace) -> str:
    lengths = [gap.seconds for gap in trace.gaps]
    if not lengths:
        return "no gaps"
    return (
        f"{len(lengths)} gaps, median {duration(percentile(lengths, 50))}, longest {duration(max(lengths))}"
    )


def _sum(spans: tuple[Span, ...]) -> str:
    moved = sum(span.bytes for span in spans)
    seconds = duration(sum(span.seconds for span in spans))
    return f"{seconds}, {amount(moved, 'B')}" if moved else seconds


def _where(trace: Trace, on_gpu: bool) -> str:
    if not trace.synchronisations:
        return ""
    names: dict[str, int] = {}
    for span in trace.synchronisations:
        names[span.name] = names.get(span.name, 0) + 1
    listed = ", ".join(
        f"{count} × {name}" for name, count in sorted(names.items(), key=lambda item: -item[1])[:3]
    )
    return f"  ({listed})" if on_gpu else f"  ({listed}: free here, but on a GPU each would wait)"
