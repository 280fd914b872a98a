"""Tables and pictures of 04_cache: right figures in the right column, with and without a record."""

import random

import pytest

from labkit.cache.tables import BlockTables
from labkit.course.plots import cache as plots
from labkit.course.tables import cache as tables

HERE = tables.Figures("here", 524_288, 100e9, 50e9, 1.9, (4, 9), 0.5, 0.05, 1024, 1.5, "Llama-2-7B")


def record():
    """What `labkit bench cache` writes, as far as the tables read it."""
    small = {"bytes_share": 0.53, "kl": 6e-4, "top1_agreement": 0.989}
    return {
        "device": "NVIDIA H200",
        "date": "2031-02-03",
        "badge": "recorded on NVIDIA H200, 2031-02-03",
        "figures": {
            "model": "labcoder@7b",
            "token_bytes": {"plain": 524_288},
            "room": {
                "rows": 28,
                "contiguous_bytes": 120e9,
                "paged_bytes": 66e9,
                "largest_batch": {"contiguous": 28, "paged": 49},
            },
            "room_throughput": {
                "contiguous": {"tokens_per_second": 1000.0},
                "paged": {"tokens_per_second": 1300.0},
            },
            "prefix": {"shared": 1024, "ttft": {"cold": 0.039, "warm": 0.051}},
            "host_tier": {"shared": 1024, "ttft": {"cold": 0.04, "warm": 0.03, "host": 4.0}},
            "long_prefix": {"shared": 4096, "ttft": {"cold": 0.12, "warm": 0.04}},
            "kernel": [
                {"shape": "MHA, 64 × 2k", "rate": 4.4e12, "share": 0.98},
                {"shape": "GQA, 1 × 32k", "rate": 3.2e12, "share": 0.74},
                {"shape": "GQA, 64 × 2k", "rate": 4.0e12, "share": 0.92},
            ],
            "compression": {"lossless": [{"codec": "zlib level 1", "ratio": 1.4}], "int8": small},
        },
    }


@pytest.mark.parametrize("entry", [None, record()])
def test_claims_put_each_machine_into_its_column(entry):
    table = tables.claims(HERE, entry)
    assert all(len(row) == len(table.headers) for row in table.rows)
    said = str(table)
    assert "19,073" in said and "1.90 ×" in said and "2.00 ×" in said
    assert ("1.30 × (batch 28 → 49)" in said) == ("labcoder@7b" in said) == (entry is not None)


def test_losses_are_shown_as_losses():
    prefix = {"shared": 1024, "ttft": {"cold": 0.5, "warm": 0.05}}
    assert [row[2] for row in tables.warm_and_cold("here", prefix, record()).rows][3] == "0.76 ×"
    assert [row[3] for row in tables.warm_and_cold("here", prefix, record()).rows][:4] == [
        "4,096", "120 ms", "40 ms", "3 ×",
    ]  # fmt: skip
    assert len(tables.warm_and_cold("here", prefix, None).headers) == 2
    held = {"shared": 256, "ttft": {"cold": 0.5, "warm": 0.05, "host": 0.1}}
    table = tables.levels("here", held, record())
    assert [row[1] for row in table.rows][:5] == ["256", "500 ms", "50 ms", "100 ms", "5 ×"]
    assert [row[2] for row in table.rows][3:5] == ["4 s", "0.01 ×"] and len(table.rows[5]) == 3


def test_other_tables_say_what_they_were_given():
    trials = {"none": tables.Trial(1.0, 0, 0, 4), "some": tables.Trial(1.0, 1000, 250, 4)}
    assert [row[-1] for row in tables.caches(trials).rows] == ["0%", "75%"]
    space = record()["figures"]["room"]
    assert "28 → 49" in str(tables.room("here", space, None))
    assert "1.82 ×" in str(tables.room("here", space, record()))
    assert "28 → 49 (1.75 ×)" in str(tables.room("here", space, None))
    assert "1,000 → 1,300 (1.30 ×)" in str(tables.room("here", space, record()))
    assert "4,400" in str(tables.kernels(record()))
    said = tables.slowest(record())
    assert "GQA, 1 × 32k, 74%" in said and "at least 92%" in said
    found = record()["figures"]["compression"]
    assert "71%" in str(tables.compressions(found, None)) and "1 in 91 differs" in str(
        tables.compressions(found, record())
    )
    assert len(set(tables.compressions(found, record()).headers)) == 3
    exact = {**found, "int8": {**found["int8"], "top1_agreement": 1.0}}
    assert "100.0%" in str(tables.compressions(exact, None))


def test_a_frame_shows_every_block_once_with_its_holders():
    draw = random.Random()
    pool = BlockTables(12, 4)
    text = [draw.randrange(9) for _ in range(10)]
    for row in (0, 1):
        pool.open(row, text)
        pool.reserve(row, 10)
        pool.commit(row, 10, text)
    moment = plots.frame("now", pool)
    assert len(moment.cells) == 12
    assert sum(len(cell.rows) == 2 for cell in moment.cells) == 2  # two full blocks are shared
    assert sorted(cell.filled for cell in moment.cells if len(cell.rows) == 1) == [0.5, 0.5]
    pool.release(0)
    pool.release(1)
    assert sum(cell.cached for cell in plots.frame("then", pool).cells) == 2
    drawn = plots.pool(plots.frame("now", pool, {1: 2})).axes[0]
    assert drawn.get_title(loc="left") == "now"
    written = [text.get_text() for text in drawn.texts]
    assert [str(block) in written for block in range(1, 13)] == [True] * 12


def test_a_frame_tells_found_blocks_from_computed_ones():
    pool = BlockTables(12, 4)
    text = list(range(10))
    found = {}
    for row in (0, 1):
        found[row] = pool.open(row, text) // 4
        pool.reserve(row, 10)
        pool.commit(row, 10, text)
    moments = [plots.frame(name, pool, found) for name in ("a", "b", "c")]
    first, second = moments[0].tables
    assert (first.found, second.found) == (0, 2) and second.blocks[:2] == first.blocks[:2]
    drawn = plots.pools(moments)
    said = [text.get_text() for text in drawn.axes[1].texts]
    blocks = [" ".join(map(str, part)) for part in (second.blocks[:2], second.blocks[2:])]
    assert f"B:  {blocks[0]} found · {blocks[1]} computed" in said
    assert [axes.get_title(loc="left") for axes in drawn.axes][:3] == ["a", "b", "c"]


def test_pictures_draw():
    lines = {"a": [1.0, 2.0], "b": [0.1, 0.1], "c": [0.2, 0.2]}
    cells = [{"shared": s, "own": 16, "cold": s / 1e3, "warm": 0.5} for s in (64, 1024)]
    for drawn in (
        plots.step_lines([16, 64], lines),
        plots.fragmentation([1, 16], [0.0, 0.1], 0.5),
        plots.hit_rates([1, 2], {"plenty": [0.5, 0.6], "scarce": [0.5, 0.1]}, [0.4, 0.5], "system"),
        plots.prefix_lines(cells, 64, 16),
    ):
        assert drawn.axes[0].get_xlabel()
    assert "lost" in plots.prefix_lines(cells, 64, 16).axes[0].get_title(loc="left")
    assert "saved" in plots.prefix_lines(cells, 1024, 16).axes[0].get_title(loc="left")
