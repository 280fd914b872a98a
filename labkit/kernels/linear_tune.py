"""Find the fastest tiling of linear layers on this device, by timing them as a model's step would run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels import tuning
from labkit.kernels.device import FLOATS, available, processors
from labkit.kernels.linear import SMALL, arrival_counters, launch, reference
from labkit.kernels.linear_tiling import Tiling, candidates, entry, operation, padded
from labkit.kernels.tuning import Timer

READ = 2 * 2**30
"""Bytes of weights that a timed call walks through on a GPU: many times its cache, as a model's layers are."""


def tune(
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device | str,
    timer: Timer,
    *,
    tokens: Sequence[int] = (1, SMALL),
    refused: dict[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Time the candidates of every shape; the entries go to `tuning.save(tuning.device_name(device), …)`.

    On a GPU each candidate is a captured graph that runs it once on each of many copies of the weight, so that
    neither the host's launches nor the cache are what is measured. That takes about 4 GB of its memory.

    Args:
        shapes: (N, K) of the weights.
        timer: `labkit.timing.compare`.
        tokens: of a step; every number up to SMALL shares one entry with those that pad to the same.
        refused: filled, if given, with the candidates that did not run or were wrong, and why.

    Returns:
        Entries by `tuning.key`: the numbers of a Tiling, and "seconds" of one product.

    Raises:
        LabkitError: a dtype or a device without a kernel, or a shape for which no candidate runs.
    """
    if dtype not in FLOATS:
        raise LabkitError(f"There is no linear kernel for {dtype}.", f"Choose one of {FLOATS}.")
    device = torch.device(device)
    if not (available(device) or _interpreted()):
        raise LabkitError(f"Triton does not compile for {device}.", "Tune on an NVIDIA GPU from Ampere on.")
    found = {}
    for n, k in dict.fromkeys(shapes):
        weights = _weights(n, k, dtype, device)
        for count in dict.fromkeys(max(t for t in tokens if padded(t) == p) for p in map(padded, tokens)):
            runs, tilings = _runs(weights, count, {} if refused is None else refused)
            name, seconds = tuning.fastest(runs, device, timer)
            key = tuning.key(operation(padded(count)), dtype, (n, k))
            found[key] = entry(tilings[name], seconds[name] / len(weights))
    return found


def _weights(n: int, k: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Copies of a random weight (zeros would run faster), together larger than any cache."""
    copies = min(256, max(2, -(-READ // (n * k * dtype.itemsize)))) if device.type == "cuda" else 1
    generator = torch.Generator(device=device).manual_seed(0)
    drawn = torch.empty(n, k, dtype=dtype, device=device).normal_(generator=generator)
    return [drawn, *(drawn.clone() for _ in range(copies - 1))]


def _runs(
    weights: list[Tensor], tokens: int, refused: dict[str, str]
) -> tuple[dict[str, Callable[[], object]], dict[str, Tiling]]:
    """The candidates that run and are right, each as a call that goes through all weights."""
    n, k = weights[0].shape
    device, dtype = weights[0].device, weights[0].dtype
    generator = torch.Generator(device=device).manual_seed(1)
    x = torch.empty(tokens, k, dtype=dtype, device=device).normal_(generator=generator)
    add = torch.empty(tokens, n, dtype=dtype, device=device).normal_(generator=generator)
    counters = arrival_counters(n, device)
    expected = reference(x.double(), weights[0].double(), add=add.double())
    runs: dict[str, Callable[[], object]] = {}
    tilings = {}
    for tiling in candidates(n, k, padded(tokens), dtype.itemsize, processors(device)):
        product = partial(launch, add=add, counters=counters, tiling=tiling, pdl=True)  # as fused layers do
        name = str(tiling)
        try:
            off = wrong(product(x, weights[0]), expected)
            if not off:
                runs[name], tilings[name] = captured(product, x, weights), tiling
        except (RuntimeError, triton_error()) as error:  # too much shared memory, or no such dot
            off = f"{type(error).__name__}: {error}"
        if off:
            refused[f"{tuning.key(operation(padded(tokens)), dtype, (n, k))} {name}"] = off
    return runs, tilings


def wrong(out: Tensor, expected: Tensor) -> str:
    """Why a candidate's result cannot be used; empty if it can. A NaN is no match."""
    slack = max(4 * torch.finfo(out.dtype).eps, 1e-5)  # in float32 the order of a long sum shows
    far = ~((out.double() - expected).abs() <= slack * (expected.abs() + expected.abs().mean()))
    return f"{int(far.sum())} of {out.numel()} outputs are wrong" if bool(far.any()) else ""


def captured(product: Callable[..., Tensor], x: Tensor, weights: Sequence[Any]) -> Callable[[], object]:
    """One call for all weights: a graph's replay on a GPU."""

    def walk() -> None:
        for weight in weights:
            product(x, weight)

    if not x.is_cuda:
        return walk
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk()
    return graph.replay


def _interpreted() -> bool:
    """Whether Triton's interpreter was chosen, which runs the kernels anywhere; its times mean nothing."""
    try:
        from labkit.kernels.linear_triton import INTERPRETED
    except ImportError:
        return False
    return INTERPRETED


def triton_error() -> type[Exception]:
    from triton.errors import TritonError

    return TritonError
