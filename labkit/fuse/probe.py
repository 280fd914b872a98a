"""A recognised layer put to the test: the fused layer against the layer's own forward, on random input.

The test runs on a copy of the layer in float32 on the CPU, with random weights of the layer's shapes, so it checks
what was read from the sources, tightly and without touching the model. Pieces that the fused layer only calls are
replaced by plain ones. Two steps are run over a small paged store: two prompts, then a decode row beside a chunk.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from labkit.cache.attention import NAME, attention
from labkit.fuse.build import Builder, Launching, Parts
from labkit.fuse.merge import Owners
from labkit.fuse.pieces import Sources, Unfit, hooks
from labkit.fuse.recognise import LINEARS, Plan, recognise
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages, allocate
from labkit.models.linear import QuantizedLinear

TOLERANCE = 1e-4
"""Largest difference, in units of the largest result; float32 rounding is a hundred times smaller."""

BLOCK = 4
TABLE = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
STEPS = (((5, 3), (5, 3)), ((1, 2), (6, 5)))
"""(tokens, visible lengths) of two rows, step by step."""


@dataclass(frozen=True)
class Store:
    """What the forward needs of a cache."""

    layout: Layout
    own: Pages

    def pages(self, layer: int) -> Pages:
        """The pages, whichever layer asks."""
        return self.own


def alike(plan: Plan) -> tuple[Any, ...]:
    """Equal for layers of which one needs to be tested: the same classes, sizes and pieces."""
    modules = tuple((name, type(module)) for name, module in plan.layer.named_modules())
    stored = (*plan.layer.named_parameters(), *plan.layer.named_buffers())
    sizes = tuple((name, each.shape) for name, each in stored)
    norms = tuple((role, norm.eps, norm.offset, norm.wide) for role, norm in plan.norms.items())
    return modules, sizes, norms, plan.activation, plan.rotary, plan.heads, plan.kv_heads, tuple(plan.kept)


@torch.inference_mode(False)
@torch.no_grad()
def check(plan: Plan) -> None:
    """Compare.

    Raises:
        Unfit: the fused layer gives other results, or one of the two cannot be run.
    """
    try:
        with torch.random.fork_rng(
            devices=()
        ):  # plain pieces draw their weights; the user's next numbers stay
            torch.manual_seed(0)
            layer = _copied(plan)
        again = recognise(plan.name, layer, Sources())
        fused = Builder(again, Parts(), Owners(layer), Launching(layer)).build()
        found, wanted = (_run(forward, again) for forward in (fused.forward, layer.forward))
    except (
        Exception
    ) as error:  # the layer is foreign code: whatever it raises means that it is not understood
        raise Unfit(f"it could not be tested ({type(error).__name__}: {error})") from error
    for one, other in zip(found, wanted, strict=True):
        distance = (one - other).abs().max() / other.abs().max()
        if not bool(distance <= TOLERANCE):  # NaN is not
            raise Unfit(f"its results differ from the fused layer's by {float(distance):.1e} in a test")


def _copied(plan: Plan) -> nn.Module:
    """The layer in float32 on the CPU with random weights, without hooks, its strange pieces replaced by plain ones."""
    memo: dict[int, Any] = {}
    generator = torch.Generator().manual_seed(0)
    packed = {role for role, piece in plan.pieces.items() if isinstance(piece, QuantizedLinear)}
    for role in (plan.kept.keys() | packed) - {"ATTENTION", "ACTIVATION"}:
        module: Any = plan.pieces[role]
        if role in LINEARS:
            bias = getattr(module, "bias", None) is not None
            memo[id(module)] = nn.Linear(module.in_features, module.out_features, bias=bias)
        else:
            memo[id(module)] = nn.RMSNorm(len(module.weight))
    for module in plan.layer.modules():
        memo |= {id(table): OrderedDict() for table in (*hooks(module), module._backward_hooks)}
    for parameter in plan.layer.parameters():
        middle, spread = (0.0, (3 / parameter.shape[-1]) ** 0.5) if parameter.ndim > 1 else (1.0, 0.3)
        random = torch.empty(parameter.shape).uniform_(middle - spread, middle + spread, generator=generator)
        memo[id(parameter)] = nn.Parameter(random)
    layer: nn.Module = copy.deepcopy(plan.layer, memo).float().cpu().eval()
    AttentionInterface.register(NAME, attention)
    own: Any = layer.get_submodule(plan.where["ATTENTION"].removeprefix(f"{plan.name}."))
    own.config._attn_implementation = NAME
    return layer


def _run(forward: Any, plan: Plan) -> list[Tensor]:
    """Hidden states after each step, and keys and values at the end."""
    outputs, generator = [], torch.Generator().manual_seed(1)
    width = int(cast(Any, plan.pieces["OUT"]).out_features)
    pages = allocate(4, BLOCK, plan.kv_heads, plan.dim, torch.float32, "cpu")
    for queries, lengths in STEPS:
        places = [(row, p) for row in (0, 1) for p in range(lengths[row] - queries[row], lengths[row])]
        slots = torch.tensor([int(TABLE[row, p // BLOCK]) * BLOCK + p % BLOCK for row, p in places])
        decodes = int(queries[0] == 1)
        layout = Layout(decodes, queries, lengths, slots, TABLE, torch.tensor(lengths).int())
        hidden = 3 * torch.randn(1, len(slots), width, generator=generator)
        angles = 6 * torch.rand(1, len(slots), plan.dim // 2, generator=generator).repeat(1, 1, 2)
        outputs.append(
            forward(
                hidden, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                position_embeddings=(angles.cos(), angles.sin()), kv=Store(layout, pages),
            )
        )  # fmt: skip
    return [*outputs, pages.keys, pages.values]
