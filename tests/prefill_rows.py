"""Packed rows as `varlen_attention` takes them."""

import itertools

import torch


def arguments(rows, padding=0):
    """(query, pages, table, starts, visible) of `Rows`, with NaN queries of nobody behind them."""
    counts = [0] * len(rows.keys)
    for row, _ in rows.where:
        counts[row] += 1
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    visible = torch.tensor([len(keys) for keys in rows.keys], dtype=torch.int32)
    query = torch.cat([rows.query, rows.query.new_full((padding, *rows.query.shape[1:]), torch.nan)])
    return query, rows.pages, rows.table, starts, visible
