"""Decode over paged keys and values: one query a row."""

from __future__ import annotations

from labkit.kernels.attention import paged_decode as decode

__all__ = ["decode"]
