"""A recognised layer put to the test: the fused layer against the layer's own forward, on random input.

The test runs on a copy of the layer in float32 on the CPU, with random weights of the layer's shapes, so it checks
what was read from the sources, tightly and without touching the model. Pieces that the fused layer only calls are
replaced by plain ones. Two steps are run over a small paged store: two prompts, then a decode row beside a chunk.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from labkit.cache.attention import NAME, attention
from labkit.fuse.build import Builder, Parts
from labkit.fuse.merge import Owners
from labkit.fuse.recognise import LINEARS, Plan, Sources, Unfit, recognise
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages, allocate

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
    sizes = tuple((name, each.shape) for name, each in plan.layer.named_parameters())
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
        layer = _copied(plan)
        again = recognise(plan.name, layer, Sources())
        again = replace(again, scale=plan.scale, window=plan.window, softcap=plan.softcap)
        fused = Builder(again, Parts(), Owners(layer)).build()
        width = int(again.pieces["ATTENTION"].head_dim)  # type: ignore[arg-type]
        found = _run(fused.forward, again, width)
        wanted = _run(layer.forward, again, width)
    except (
        Exception
    ) as error:  # the layer is foreign code, and whatever it raises means that it is not understood
        raise Unfit(f"it could not be tested ({type(error).__name__}: {error})") from error
    for one, other in zip(found, wanted, strict=True):
        distance = (one - other).abs().max() / other.abs().max()
        if not bool(distance <= TOLERANCE):  # NaN is not
            raise Unfit(f"its results differ from the fused layer's by {float(distance):.1e} in a test")


def _copied(plan: Plan) -> nn.Module:
    """The layer in float32 on the CPU with random weights, without hooks, its strange pieces replaced by plain ones."""
    memo: dict[int, Any] = {}
    generator = torch.Generator().manual_seed(0)
    hidden = plan.norms["NORM_MLP"].weight.numel() if "NORM_MLP" in plan.norms else None
    for role, module in plan.pieces.items():
        if role not in plan.kept or role in ("ATTENTION", "ACTIVATION"):
            continue
        if role in LINEARS:
            plain: nn.Module = nn.Linear(int(module.in_features), int(module.out_features))  # type: ignore[arg-type]
        else:
            weight = getattr(module, "weight", None)
            plain = nn.RMSNorm(weight.numel() if isinstance(weight, Tensor) else hidden or 1)
        memo[id(module)] = plain
    for module in plan.layer.modules():
        for tables in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            memo[id(tables)] = OrderedDict()
    for parameter in plan.layer.parameters():
        spread = torch.rand(parameter.shape, generator=generator) * 2 - 1
        random = spread * (3 / parameter.shape[-1]) ** 0.5 if parameter.ndim > 1 else 1 + 0.3 * spread
        memo[id(parameter)] = nn.Parameter(random)
    layer: nn.Module = copy.deepcopy(plan.layer, memo).float().cpu().eval()
    AttentionInterface.register(NAME, attention)
    layer.get_submodule(
        plan.where["ATTENTION"].removeprefix(f"{plan.name}.")
    ).config._attn_implementation = NAME  # type: ignore[union-attr]
    return layer


def _run(forward: Any, plan: Plan, width: int) -> list[Tensor]:
    """Hidden states after each step, and keys and values at the end."""
    first = plan.norms.get("NORM_ATTENTION")
    size = first.weight.numel() if first else int(plan.pieces["OUT"].out_features)  # type: ignore[arg-type]
    pages = allocate(4, BLOCK, plan.kv_heads, width, torch.float32, "cpu")
    outputs, generator = [], torch.Generator().manual_seed(1)
    for queries, lengths in STEPS:
        slots = [
            int(TABLE[row, p // BLOCK]) * BLOCK + p % BLOCK
            for row, (count, length) in enumerate(zip(queries, lengths, strict=True))
            for p in range(length - count, length)
        ]
        decodes = int(queries[0] == 1)
        layout = Layout(decodes, queries, lengths, torch.tensor(slots), TABLE, torch.tensor(lengths).int())
        hidden = 3 * torch.randn(1, len(slots), size, generator=generator)
        angles = 6 * torch.rand(1, len(slots), width // 2, generator=generator).repeat(1, 1, 2)
        outputs.append(
            forward(
                hidden, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                position_embeddings=(angles.cos(), angles.sin()), kv=Store(layout, pages),
            )
        )  # fmt: skip
    return [*outputs, pages.keys, pages.values]
