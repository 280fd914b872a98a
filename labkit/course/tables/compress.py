"""Tables of notebook 02 on what was just measured: sizes, quality beside size, remedies, what pruning saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, recorded
from labkit.course.probe import Reading
from labkit.course.tables.cache import size
from labkit.quality import Interval
from labkit.timing import duration

NOTEBOOK = "02_compress"


def floors(entry: Mapping[str, Any], precisions: Mapping[str, float]) -> Table:
    """The least time of one token on the recorded GPU, by bits of a weight.

    Args:
        entry: of `labkit bench profile`, whose model is in 16 bits.
        precisions: name → bits.
    """
    words, figures = texts.words(NOTEBOOK), entry["figures"]
    seconds = figures["floors"]["tpot"]
    bandwidth = figures["ceilings"]["measured"]["bandwidth"]
    rows: list[list[str | Badge]] = []
    for name, bits in precisions.items():
        least = seconds * bits / 16
        rows.append([name, size(least * bandwidth), duration(least), f"{1 / least:,.0f}"])
    rows.append(["", "", "", recorded(dict(entry))])
    return Table([words[key] for key in ("precision", "bytes_a_token", "floor", "most_tokens")], rows)


def sizes(found: Mapping[str, Sequence[int]], columns: Sequence[str]) -> Table:
    """Bytes by precision, a column for each model."""
    words = texts.words(NOTEBOOK)
    rows = [[name, *(f"{value / 1e9:.2f} GB" for value in line)] for name, line in found.items()]
    return Table([words["precision"], *columns], rows)


def quality(found: Mapping[str, tuple[int, Reading]], kind: str = "precision") -> Table:
    """Models by size, and how they differ from the first.

    Args:
        found: name → (stored bytes of the weights, what the probe read).
        kind: word for the first column.
    """
    words = texts.words(NOTEBOOK)
    rows = [
        [name, size(stored), worse(read), f"{1e3 * read.kl:.1f}", f"{read.agreement:.1%}"]
        for name, (stored, read) in found.items()
    ]
    heads = [words[key] for key in (kind, "weights", "ppl", "kl", "same")]
    return Table(heads, rows, words["quality_caption"])


def worse(read: Reading) -> str:
    """Perplexity above the reference's, with its interval [%]."""
    if read.kl == 0:
        return texts.words(NOTEBOOK)["the_reference"]
    return share(read.worse)


def share(moved: Interval) -> str:
    """A change that is a share, with its interval [%]."""
    ends = f"{100 * moved.low:+.1f} … {100 * moved.high:+.1f}"
    return f"{100 * moved.mean:+.2f} % ({ends})"


def speeds(seconds: Mapping[str, float], sizes: Mapping[str, int], first: str) -> Table:
    """Time per output token beside stored bytes; all compared with `first`."""
    words = texts.words(NOTEBOOK)
    rows = [
        [name, size(sizes[name]), duration(each), f"{1 / each:,.0f}", f"{seconds[first] / each:.2f} ×"]
        for name, each in seconds.items()
    ]
    heads = [words[key] for key in ("model", "weights", "a_token", "tokens_s", "against_first")]
    return Table([*heads[:-1], heads[-1].format(first=first)], rows)


def damage(found: Mapping[str, float], count: int = 5) -> Table:
    """The matrices that do most damage.

    Args:
        found: module → KL [nats], the worst first.
    """
    words = texts.words(NOTEBOOK)
    rows = [[short(name), f"{1e3 * kl:.1f}"] for name, kl in list(found.items())[:count]]
    return Table([words["layer"], words["kl"]], rows, words["damage_caption"])


def short(module: str) -> str:
    """A layer's name for tables: "model.layers.2.mlp.down_proj" is "2 down"."""
    parts = module.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return f"{number} {parts[-1].removesuffix('_proj')}".strip()


def zeros(rows: Sequence[tuple[float, Any, Reading]]) -> Table:
    """Unstructured pruning: share of zeros, `Sparsity`, quality."""
    words = texts.words(NOTEBOOK)
    shown = [
        [f"{share:.0%}", worse(read), size(sparse.dense), size(sparse.csr), size(sparse.bitmask)]
        for share, sparse, read in rows
    ]
    return Table([words[key] for key in ("zeros", "ppl", "as_is", "as_csr", "as_mask")], shown)
