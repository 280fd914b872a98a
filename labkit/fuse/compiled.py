"""The other road to fused kernels: let torch.compile write them.

    compiled.apply(lm)       # decoder layers of packed steps through torch.compile
    compiled.remove(lm)      # the model as it was

Attention itself runs as it is, and a layer is compiled in the pieces around it: norm; q, k, v and rotation; output
projection; residual, norm and MLP. It must be cut there: the layout of a packed step holds numbers of the host (how
many tokens each row has), and a compiler that looks inside sees new constants in every step and compiles every time.
With the cut nothing that is compiled depends on the rows. The number of tokens stays a symbol (1 is a case of its
own), and all layers share the code, so a model of any depth compiles about eight graphs.

What works: norms, rotation, activation and residual additions become a few generated kernels; products stay the
library's. The pieces can be captured in the engine's CUDA graphs. Bits may differ from the model's own, since the
compiler keeps in float32 what the model rounds between two operations.

What does not: `mode="reduce-overhead"`, whose graphs would want to own memory that the paged store owns; merged
projections and our kernels, which are `fuse.apply`'s (one road or the other: a layer has one forward). And a whole
step with one compilation and no cut works with a static cache only, as transformers' `generate` does it
(`labkit.profile.stages.compiled`): one row, one size.

Source: Ansel et al. 2024, "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation". Cutting at attention is what vLLM does too, and calls piecewise compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from labkit.cache.attention import NAME, attention
from labkit.errors import LabkitError
from labkit.fuse.applied import decoder_layers
from labkit.fuse.layer import needs_gradient
from labkit.fuse.pieces import alive, hooks
from labkit.models import LM

STATE = "_labkit_compiled"
HOW = (
    "Install a C++ compiler (on a CPU) or Triton (on a GPU), or use fuse.apply, which needs neither on a CPU."
)


def apply(lm: LM, *, backend: str = "inductor") -> int:
    """Compile the decoder layers' packed steps, at their first use; applying again starts over.

    Args:
        backend: of torch.compile; "eager" traces and cuts, and generates nothing.

    Returns:
        How many layers.

    Raises:
        LabkitError: torch.compile does not work here, or another forward was put on a layer (fuse.apply's, say).
    """
    remove(lm)
    layers = decoder_layers(lm.model)
    for name, layer in layers:
        if "forward" in vars(layer):
            raise LabkitError(
                f"{name} has a forward that somebody put there, and compiling would pass it by.",
                "Call labkit.fuse.remove(lm) first.",
            )
    _try(lm.device, backend)
    state = Compiled(lm.model, [layer for _, layer in layers], backend)
    setattr(lm.model, STATE, state)
    return len(layers)


def remove(lm: LM) -> None:
    """Give the layers their own forwards back."""
    state = getattr(lm.model, STATE, None)
    if state is not None:
        state.remove()
        delattr(lm.model, STATE)


class Compiled:
    """What is compiled on one model."""

    def __init__(self, model: Any, layers: list[nn.Module], backend: str) -> None:
        self._layers = layers
        self._apart = torch.compiler.disable(attention)  # the cut
        by_type = {
            kind: torch.compile(cast(Any, kind).forward, backend=backend, dynamic=True)
            for kind in set(map(type, layers))
        }
        for layer in layers:
            inner = (table for each in layer.modules() if each is not layer for table in hooks(each))
            layer.forward = Forward(layer, by_type[type(layer)], tuple(inner))
        self._hook = model.base_model.register_forward_pre_hook(self._before, with_kwargs=True)

    def remove(self) -> None:
        """Undo everything, and leave alone what others have put in its place since."""
        self._hook.remove()
        for layer in self._layers:
            if isinstance(vars(layer).get("forward"), Forward):
                del layer.forward
        if ALL_ATTENTION_FUNCTIONS.get(NAME) is self._apart:
            AttentionInterface.register(NAME, attention)

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have attention looked up as the function that is not compiled; `install` registers the bare one."""
        if kwargs.get("kv") is not None and ALL_ATTENTION_FUNCTIONS.get(NAME) is not self._apart:
            AttentionInterface.register(NAME, self._apart)


@dataclass(frozen=True, eq=False)
class Forward:
    """A layer's forward: compiled for packed steps, its own for everything else, training and `generate` included.

    Args:
        hooks: of the submodules. Compiled code does not notice that some came, so while there are any it does not run.
    """

    layer: nn.Module
    compiled: Callable[..., Any]
    hooks: tuple[Mapping[int, Any], ...]

    def __call__(self, hidden_states: Tensor, *args: Any, **context: Any) -> Any:
        own = context.get("kv") is None or self.layer.training or any(map(alive, self.hooks))
        if own or needs_gradient(self.layer, hidden_states):
            return type(self.layer).forward(self.layer, hidden_states, *args, **context)
        return self.compiled(self.layer, hidden_states, *args, **context)


def _try(device: torch.device, backend: str) -> None:
    """Compile next to nothing, so that a missing compiler is one message here and not a failure of every request."""
    try:
        torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.ones(8, device=device))
    except Exception as error:  # whatever is missing
        first = (str(error).strip().splitlines() or [""])[0]
        raise LabkitError(
            f"torch.compile does not work here: {type(error).__name__}: {first}", HOW
        ) from error
