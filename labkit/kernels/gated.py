"""The gated activation of an MLP: activation(gate) · up, from one merged projection [gate | up].

Unfused, act(gate) is written to memory and read back. The kernel reads gate and up once and writes the
product once: 3 numbers moved for each result instead of 5. It computes in float32 and rounds once, where
torch rounds act(gate) to the dtype too.

Source: Shazeer 2020, "GLU Variants Improve Transformer"; the tanh form of GELU is Hendrycks & Gimpel 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType, ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.device import compiles, dependent

ACTIVATIONS: MappingProxyType[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
)

FEW = 1 << 19
"""Results below which small programs spread the work over more of the GPU's processors."""


def gated(gate_up: Tensor, activation: str, *, pdl: bool = False) -> Tensor:
    """activation(gate) · up, by the kernel where it runs and in torch elsewhere.

    Args:
        gate_up: [..., 2·I], the gate first.
        activation: "silu", "gelu" or "gelu_tanh".
        pdl: programmatic dependent launch, see rms_norm.launch; no effect on the reference.

    Returns:
        [..., I] in the dtype of gate_up.

    Raises:
        LabkitError: the activation is unknown, or the columns are not two halves.
    """
    if activation not in ACTIVATIONS or gate_up.shape[-1] % 2:
        raise LabkitError(
            f"A gated activation {activation!r} of {gate_up.shape[-1]} columns was asked for.",
            f"Known are {', '.join(ACTIVATIONS)}, of an even number of columns: gate, then up.",
        )
    return launch(gate_up, activation, pdl=pdl) if compiles(gate_up) else reference(gate_up, activation)


def reference(gate_up: Tensor, activation: str) -> Tensor:
    """gated in torch, any dtype and device, as transformers' MLPs compute it. Bit for bit where they chunk a merged
    projection too; torch's vectorised loops end elsewhere in a row of its own, which may move a last bit."""
    gate, up = gate_up.chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def launch(gate_up: Tensor, activation: str, *, tile: int | None = None, pdl: bool = False) -> Tensor:
    """The kernel, with the contract of gated for dtypes in device.FLOATS.

    Args:
        tile: results of one program, a power of 2 and at least 256; chosen from the size if not given. Every
            result is computed alone, so it changes no bit.
        pdl: programmatic dependent launch, see rms_norm.launch.
    """
    columns = gate_up.shape[-1] // 2
    gate_up = gate_up.contiguous()
    out = torch.empty(*gate_up.shape[:-1], columns, dtype=gate_up.dtype, device=gate_up.device)
    count = out.numel()
    if count:
        tile = tile or (256 if count < FEW else 1024)
        _kernels().gated_kernel[(count // columns * -(-columns // tile),)](
            gate_up, out, COLUMNS=columns, TILE=tile, ACTIVATION=activation, PDL=pdl,
            num_warps=max(1, tile // 256), **dependent(pdl),  # 16 bytes a thread in half precision
        )  # fmt: skip
    return out


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import gated_triton

    return gated_triton
