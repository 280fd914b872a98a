"""CUDA graphs of packed steps: a step of hundreds of kernels as one launch.

A model's step is launched kernel by kernel, and for few tokens the host needs longer to launch them than the
device to run them. A graph is recorded once and replayed whole. What was recorded is fixed: which kernels, on what
addresses, with what numbers from Python. So

- all that varies from step to step lies in memory at fixed places (GraphInputs), lengths and block tables too;
- a graph is captured for each size of `buckets.buckets`, and a step fills the rest of its bucket with padding, which
  writes to a reserved block that no row holds;
- numbers from Python are part of the bucket: rows and tokens, and with them the shares that decode attention cuts
  contexts into, which depend on the width of the table and never on lengths;
- graphs of a model that was changed since (fuse.apply, fuse.remove, moved weights) are captured anew.

Steps of prompt chunks need an attention kernel that reads on the device where rows begin: they are captured where
`fuse.apply` put one in. A model that refuses capture (one that looks at a value on the host, or has hooks, which a
replay would not run) runs as before, and `refused` says why.

Sources: NVIDIA, "CUDA C++ Programming Guide", CUDA Graphs; Kwon et al. 2023 and vLLM's documentation of graphs for
decode batches.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.cache.numbers import Numbers
from labkit.cache.pack import forward
from labkit.errors import LabkitError
from labkit.fuse.applied import STATE, decoder_layers
from labkit.fuse.buckets import MOST_TOKENS, Bucket, bucket_for, buckets
from labkit.fuse.graph_inputs import GraphInputs
from labkit.fuse.pieces import foreign, hooks
from labkit.fuse.watch import Watch
from labkit.kernels.pages import Pages
from labkit.models import LM


@dataclass(frozen=True)
class Captured:
    """A recorded step, and where it leaves its logits [rows, vocabulary]."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class StepGraphs:
    """The graphs of one engine's model.

    Args:
        lm: the model, on a GPU, with labkit's attention installed.
        layers: its keys and values.
        rows, step_tokens: the most of a step.
        width: the most blocks of a row.
        newest: see GraphInputs.

    Attributes:
        refused: why the model is not captured; None if it is.
    """

    def __init__(
        self, lm: LM, layers: Sequence[Pages], newest: Tensor, *, rows: int, step_tokens: int, width: int
    ) -> None:
        self.refused: str | None = None
        self._lm, self._rows, self._step_tokens = lm, rows, step_tokens
        self._inputs = GraphInputs(max(rows, min(step_tokens, MOST_TOKENS)), rows, width, newest, layers)
        self._graphs: dict[Bucket, Captured] = {}
        self._watch = Watch()
        self._fused: object = None
        self._capture_all()

    @property
    def sizes(self) -> list[Bucket]:
        """What is captured, the largest first."""
        return list(self._graphs)

    def run(self, step: Numbers) -> Tensor | None:
        """Replay a step: its logits [wanted, vocabulary], there until the next replay. None if it is not captured."""
        if self._fused is not getattr(self._lm.model, STATE, None) or not self._watch.same:
            self._capture_all()
        bucket = bucket_for(step, list(self._graphs))
        if bucket is None:
            return None
        self._inputs.fill(bucket, step)
        captured = self._graphs[bucket]
        captured.graph.replay()
        return captured.logits[: len(step.wanted)]

    def _capture_all(self) -> None:
        """Capture every size in one pool of memory, or none at all."""
        self._graphs.clear()
        self.refused = None
        self._fused = getattr(self._lm.model, STATE, None)
        self._watch = Watch(self._lm.model.modules(), closely=True)
        pool = torch.cuda.graph_pool_handle()
        mixed = bool(getattr(self._fused, "varlen", False))
        try:
            _check(self._lm.model)
            for bucket in buckets(self._rows, self._step_tokens, mixed=mixed):
                self._graphs[bucket] = self._capture(bucket, pool)
        except Exception as error:  # whatever a model does that cannot be recorded
            self._graphs.clear()
            self.refused = str(error).partition("\n")[0] or type(error).__name__
            warnings.warn(
                f"{self._lm.name} runs without CUDA graphs, as it cannot be captured ({self.refused}).",
                stacklevel=2,
            )
            torch.cuda.synchronize()
        gc.collect()

    def _capture(self, bucket: Bucket, pool: Any) -> Captured:
        self._inputs.fill(bucket, None)
        stream = torch.cuda.Stream(self._lm.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and lets libraries allocate what they keep
            forward(self._lm, self._inputs.pack(bucket))
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            logits = forward(self._lm, self._inputs.pack(bucket))
        return Captured(graph, logits)


def _check(model: nn.Module) -> None:
    """Refuse a model with hooks of others: their Python would run once, when steps are captured. And one in training,
    whose layers run their own code, which takes rows from the host: as they were cut when captured."""
    if any(layer.training for _, layer in decoder_layers(model)):
        raise LabkitError("the model is in training mode; call model.eval()")
    for name, module in model.named_modules():
        for table in hooks(module):
            if any(not str(getattr(hook, "__module__", "")).startswith("labkit.") for hook in foreign(table)):
                raise LabkitError(
                    f"{name or 'the model'} has hooks, which a replay would not run",
                )
