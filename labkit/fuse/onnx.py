"""A framework's fusions, seen from outside: one decoder layer in ONNX Runtime, its graph optimisations off and on.

    found = onnx.study(load("labcoder"))
    print(found)

The layer is exported as plain operators and run on the CPU in float32. ONNX Runtime rewrites a graph when it is loaded:
it folds constants, drops what does nothing, and puts patterns that it knows into one node (a multiplication into the
matrix product behind it, say). What does not look like its pattern stays: count before you believe. The
numbers are those of one layer over one prompt, without a cache; a service is built with ONNX Runtime GenAI instead
(docs/handing_over.md).

Source: ONNX Runtime's documentation, "Graph Optimizations in ONNX Runtime".
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import LabkitError
from labkit.fuse.applied import decoder_layers
from labkit.models import LM
from labkit.timing import Measurement, compare

OPSET = 20
NAMES = ("hidden", "cos", "sin")


@dataclass(frozen=True)
class Side:
    """ONNX Runtime with its optimisations off or on.

    Args:
        operators: of the graph that is run, name → how many.
        difference: to torch, the largest one of numbers ÷ torch's largest number.
    """

    operators: dict[str, int]
    seconds: Measurement
    difference: float

    @property
    def nodes(self) -> int:
        """Operators in all: about as many passes over memory."""
        return sum(self.operators.values())


@dataclass(frozen=True)
class Study:
    """One layer, three ways."""

    model: str
    tokens: int
    off: Side
    on: Side
    torch: Measurement

    @property
    def changed(self) -> dict[str, int]:
        """Operators of which the optimised graph has more or fewer, with the change."""
        names = sorted({*self.off.operators, *self.on.operators})
        change = {name: self.on.operators.get(name, 0) - self.off.operators.get(name, 0) for name in names}
        return {name: number for name, number in change.items() if number}

    def __str__(self) -> str:
        changes = ", ".join(f"{number:+d} {name}" for name, number in self.changed.items())
        lines = (
            f"optimisations {name:<4} {side.nodes:4d} nodes  {side.seconds}, off by {side.difference:.1e}"
            for name, side in (("off", self.off), ("on", self.on))
        )
        return "\n".join(
            [f"One layer of {self.model}, {self.tokens} tokens, CPU, float32", *lines,
             f"torch                         {self.torch}", f"changed: {changes}"]
        )  # fmt: skip

    __repr__ = __str__  # the last line of a notebook's cell shows this


def study(lm: LM, *, tokens: int = 64, layer: int = 0, repeats: int = 20) -> Study:
    """Export a layer and time it in ONNX Runtime without and with optimisations, and in torch, in turns.

    Args:
        tokens: of the prompt.
        layer: which one.

    Raises:
        LabkitError: ONNX Runtime is not installed, or the exporter cannot read the layer.
    """
    _require()
    block, inputs = _block(lm, tokens, layer)
    feeds = {name: value.numpy() for name, value in zip(NAMES, inputs, strict=True)}
    with torch.inference_mode(), _few_threads():
        expected = block(*inputs)
        sessions = _sessions(block, inputs)
        timed = compare(
            {
                "off": lambda: sessions["off"][0].run(None, feeds),
                "on": lambda: sessions["on"][0].run(None, feeds),
                "torch": lambda: block(*inputs),
            },
            device="cpu", repeats=repeats,
        )  # fmt: skip
    sides = {}
    for name, (session, operators) in sessions.items():
        gap = (torch.from_numpy(session.run(None, feeds)[0]) - expected).abs().max()
        sides[name] = Side(operators, timed[name], float(gap / expected.abs().max()))
    return Study(lm.name, tokens, sides["off"], sides["on"], timed["torch"])


def _require() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise LabkitError(
            f"{error.name} is not installed.", 'Install the extra: pip install -e ".[onnx]"'
        ) from None


class Block(nn.Module):
    """A layer over one prompt, as a function of (hidden [1, T, H], cos, sin [1, T, rotated])."""

    def __init__(self, layer: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mask", mask)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The layer's output, [1, T, H]."""
        out = self.layer(hidden, attention_mask=self.mask, position_embeddings=(cos, sin))
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found


def _block(lm: LM, tokens: int, number: int) -> tuple[Block, tuple[Tensor, ...]]:
    """A copy of the layer, with attention in plain operators, and inputs as large as a residual stream's."""
    layers = decoder_layers(lm.model)
    if not 0 <= number < len(layers):
        raise LabkitError(f"{lm.name} has no layer {number}.", f"Choose one of 0 to {len(layers) - 1}.")
    layer = copy.deepcopy(layers[number][1]).float().cpu().eval()
    vars(layer).pop("forward", None)  # a fused one is nothing that an exporter can read
    for module in layer.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:  # a copy already, as the layer is
            config._attn_implementation = "eager"
    rotary: Any = copy.deepcopy(getattr(lm.model.get_decoder(), "rotary_emb", None))
    if rotary is None:
        raise LabkitError(f"{lm.name} has no rotary positions.", "Take a model of the Llama family.")
    hidden = torch.randn(1, tokens, lm.config.hidden_size, generator=torch.Generator().manual_seed(0))
    cos, sin = rotary.cpu()(hidden, torch.arange(tokens)[None])
    mask = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)[None, None]
    return Block(layer, mask), (hidden, cos, sin)


def _sessions(block: Block, inputs: tuple[Tensor, ...]) -> dict[str, tuple[Any, dict[str, int]]]:
    """Name → (session, operators of the graph that it runs), both on torch's number of threads."""
    import onnx
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        with _quiet():
            # the exporter's own optimiser stays out of it: what a graph gains is to be seen in one place
            program: Any = torch.onnx.export(
                block, inputs, dynamo=True, optimize=False, opset_version=OPSET, input_names=list(NAMES), verbose=False
            )  # fmt: skip
            program.save(str(path))
        for name, level in (("off", levels.ORT_DISABLE_ALL), ("on", levels.ORT_ENABLE_ALL)):
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = level
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(Path(folder) / f"{name}.onnx")
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            graph = onnx.load(options.optimized_model_filepath).graph
            found[name] = (session, dict(Counter(node.op_type for node in graph.node)))
    return found


@contextmanager
def _few_threads() -> Iterator[None]:
    """torch with as many threads as one layer can use: more wait for one another, the longer the busier a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 4))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about packages that a layer does not need."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
