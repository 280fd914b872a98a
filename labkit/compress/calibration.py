"""What the linear layers of a model are fed: statistics of their inputs over a text.

A weight matters as much as the input it meets. Which input channels are large is a property of the model that a few
thousand tokens show, if they are of the kind that the model will see in use: calibrating on something else gives
statistics of something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress.layers import linears
from labkit.compress.text import training_tokens
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.models.lm import check_positions

WINDOW = 512
"""Tokens of one forward."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What one tensor was over the text, before the linear layers that read it.

    Args:
        mean_abs: mean of |x| by channel, [K] in float32 or better.
        max_abs: largest |x| by channel, [K] likewise.
        rows: inputs of some tokens, the same tokens in every tensor, [S, K] in the model's dtype.
    """

    mean_abs: Tensor
    max_abs: Tensor
    rows: Tensor

    def moments(self) -> Tensor:
        """XᵀX / S of the sampled rows, [K, K]: all that a squared error of outputs needs to know of X.

        Covariances are shrunk by S / (S + K): of few rows they are noise, which a search would fit. Means and
        variances are kept.
        """
        rows = self.rows.to(self.mean_abs.dtype)
        mean = rows.mean(0)
        centred = rows - mean
        covariance = centred.T @ centred / len(rows)
        variance = covariance.diagonal().clone()
        covariance *= len(rows) / (len(rows) + rows.shape[1])
        covariance.diagonal().copy_(variance)
        return covariance.add_(mean.outer(mean))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Inputs of the linear layers of a model.

    Args:
        inputs: by the module's name; layers that read one tensor (q, k and v) share one object.
        tokens: that were read.
    """

    inputs: Mapping[str, Inputs]
    tokens: int

    def __getitem__(self, name: str) -> Inputs:
        if name not in self.inputs:
            raise LabkitError(
                f"The calibration has no inputs of {name!r}.", "Calibrate on the model that is quantised."
            )
        return self.inputs[name]

    def groups(self) -> list[tuple[str, ...]]:
        """Names of the layers that read one tensor, in order of use."""
        found: dict[int, list[str]] = {}
        for name, inputs in self.inputs.items():
            found.setdefault(id(inputs), []).append(name)
        return [tuple(names) for names in found.values()]


def calibrate(
    lm: LM, text: str | Tensor | None = None, *, tokens: int = 8192, rows: int = 2048, seed: int = 0
) -> Calibration:
    """Run a text through the decoder and watch the inputs of its linear layers.

    Args:
        text: or token ids of any shape; `training_text` if not given. Its first `tokens` tokens are read.
        rows: inputs to keep of each tensor, drawn from all tokens; as many as there are at most.
        seed: of that draw, and of the training text.

    Raises:
        LabkitError: an empty text, ids that the model has not, or NaN on the way.
    """
    ids = _ids(lm, text, tokens, seed)
    check_positions(lm, min(WINDOW, len(ids)), "calibration")
    kept = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:rows].sort().values
    watched = _Watched(linears(lm))
    with torch.no_grad(), watched.hooks():
        for start in range(0, len(ids), WINDOW):
            watched.take = kept[(kept >= start) & (kept < start + WINDOW)] - start
            lm.model.get_decoder()(ids[None, start : start + WINDOW].to(lm.device), use_cache=False)
            watched.seen.clear()
    return Calibration(watched.results(len(ids)), len(ids))


def _ids(lm: LM, text: str | Tensor | None, tokens: int, seed: int) -> Tensor:
    if text is None:
        return training_tokens(lm, tokens, seed)
    ids = lm.encode(text).cpu() if isinstance(text, str) else text.detach().cpu()
    ids = ids.reshape(-1)[:tokens]
    if (
        not len(ids)
        or ids.is_floating_point()
        or int(ids.min()) < 0
        or int(ids.max()) >= lm.config.vocab_size
    ):
        raise LabkitError(
            f"{len(ids)} tokens of {ids.dtype} cannot calibrate {lm.name}.",
            f"Give text, or ids from 0 to {lm.config.vocab_size - 1}.",
        )
    return ids


class _Watched:
    """Running sums, one for each tensor that some linear layers read."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self.take: Tensor = torch.empty(0, dtype=torch.long)
        self.seen: dict[int, tuple[Tensor, str]] = {}  # holds the tensors, so that no id is used twice
        self.leader: dict[str, str] = {}
        self.sums: dict[str, Tensor] = {}
        self.largest: dict[str, Tensor] = {}
        self.rows: dict[str, list[Tensor]] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Watch while the block runs."""
        handles = [
            module.register_forward_pre_hook(self._hook(name)) for name, module in self.modules.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            x: Tensor = args[0]
            leader = self.seen.setdefault(id(x), (x, name))[1]
            if self.leader.setdefault(name, leader) != leader:
                raise LabkitError(
                    f"{name} reads another tensor at each step.", "Quantise it without calibration."
                )
            if leader == name:
                self._add(name, x.detach().flatten(0, -2))

        return hook

    def _add(self, name: str, x: Tensor) -> None:
        size = x.to(torch.promote_types(x.dtype, torch.float32)).abs()
        if name not in self.sums:
            self.sums[name], self.largest[name] = size.sum(0), size.amax(0)
        else:
            self.sums[name] += size.sum(0)
            self.largest[name] = torch.maximum(self.largest[name], size.amax(0))
        self.rows.setdefault(name, []).append(x[self.take.to(x.device)])

    def results(self, tokens: int) -> dict[str, Inputs]:
        """By the name of every module that was used."""
        found = {
            name: Inputs(self.sums[name] / tokens, self.largest[name], torch.cat(self.rows[name]))
            for name in self.sums
        }
        if any(not bool(each.mean_abs.isfinite().all()) for each in found.values()):
            raise LabkitError("The model gives NaN or infinity on this text.", "Undo the last change to it.")
        return {name: found[leader] for name, leader in self.leader.items()}
