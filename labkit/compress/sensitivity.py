"""Which linear layers suffer most in few bits: one at a time is quantised, and the model's output compared.

The damages of single layers nearly add up as long as they are small, so that they tell where bits are worth their
bytes (budget.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.compress.awq import best_clip
from labkit.compress.calibration import WINDOW, Calibration
from labkit.compress.layers import decoder_layers, linears
from labkit.compress.text import training_tokens
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.kernels.packed import quantise
from labkit.models import LM


@dataclass(frozen=True)
class Sensitivity:
    """What one format does to one layer.

    Args:
        module: the layer's name.
        format: None: as it is.
        bytes: that the weight takes in it.
        kl: mean KL(model ‖ model with this layer quantised) per token [nats].
        loss: rise of the mean negative log-likelihood per token [nats]; noisier than the KL.
    """

    module: str
    format: Format | None
    bytes: int
    kl: float
    loss: float


@torch.no_grad()
def sensitivity(
    lm: LM,
    formats: Sequence[Format | None],
    text: str | Tensor | None = None,
    *,
    tokens: int = 2048,
    calibration: Calibration | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Sensitivity]:
    """Damage by linear layer and format.

    Args:
        formats: to try; None for the layer as it is, with no damage.
        text: or token ids; training text if not given.
        tokens: of it to use.
        calibration: clip each group as AWQ does; without it weights are rounded to nearest.
        progress: called with each layer's name.

    Raises:
        LabkitError: no two tokens, or a model that gives NaN.
    """
    batch = batches(lm, text, tokens)
    outputs = Outputs(lm, batch)
    found = []
    for name, linear in linears(lm).items():
        if progress:
            progress(name)
        weight, dtype = linear.weight.data, linear.weight.dtype
        for format in formats:
            if format is None:
                found.append(Sensitivity(name, None, weight.numel() * weight.element_size(), 0.0, 0.0))
                continue
            exact = weight.to(torch.promote_types(dtype, torch.float32))
            clip = best_clip(exact, calibration[name].moments(), format) if calibration else None
            packed = quantise(exact, format, clip=clip, scale_dtype=dtype)
            try:
                linear.weight.data = packed.dequantise(dtype)
                kl, loss = outputs.compare(lm, name)
            finally:
                linear.weight.data = weight
            found.append(Sensitivity(name, format, packed.nbytes, kl, loss))
    return found


def batches(lm: LM, text: str | Tensor | None, tokens: int) -> Tensor:
    """Token ids [B, T] of a text in windows of equal length.

    Raises:
        LabkitError: fewer than two tokens.
    """
    if text is None:
        ids = training_tokens(lm, tokens)
    else:
        ids = (lm.encode(text) if isinstance(text, str) else text).reshape(-1)[:tokens]
    if len(ids) < 2:
        raise LabkitError(
            "The text is too short to compare models on.", "Give a text of at least two tokens."
        )
    length = min(WINDOW, len(ids))
    return ids[: len(ids) // length * length].view(-1, length).to(lm.device)


class Outputs:
    """A reference's predictions, and the hidden states on their way."""

    def __init__(self, lm: LM, ids: Tensor) -> None:
        self.ids = ids
        self.logs, self.states = run(lm, ids)
        self.loss = nll(self.logs, ids)

    def compare(self, lm: LM, changed: str | None = None) -> tuple[float, float]:
        """(KL, rise of the loss) of another model, per token in nats.

        Args:
            changed: a module, if the model is the reference but for it; layers before it are not run again.
        """
        skipped = {}
        if changed is not None:
            names = {id(module): name for name, module in lm.model.named_modules()}
            for layer, states in zip(decoder_layers(lm), self.states, strict=True):
                if f"{changed}.".startswith(names[id(layer)] + "."):
                    break
                skipped[layer] = states
        logs, _ = run(lm, self.ids, skipped)
        kl = float(F.kl_div(logs, self.logs, log_target=True, reduction="sum") / logs[..., 0].numel())
        loss = nll(logs, self.ids) - self.loss
        if kl != kl or loss != loss:
            raise LabkitError(f"{lm.name} gives NaN on this text.", "A change has broken the model.")
        return kl, loss


@torch.no_grad()
def run(lm: LM, ids: Tensor, skipped: dict[nn.Module, Any] | None = None) -> tuple[Tensor, list[Any]]:
    """Log probabilities [B, T, vocabulary] in float32, and what each decoder layer gave.

    Args:
        skipped: layers with what they are known to give.
    """
    states: list[Any] = []
    skipped = skipped or {}
    handles = [
        layer.register_forward_hook(lambda _, __, out: states.append(out)) for layer in decoder_layers(lm)
    ]
    try:
        with known(skipped):
            logits = lm.model(ids, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits.float().log_softmax(-1), states


@contextmanager
def known(outputs: dict[nn.Module, Any]) -> Iterator[None]:
    """Let modules give what they are known to give, while the block runs."""
    before = {module: vars(module).get("forward") for module in outputs}
    try:
        for module, out in outputs.items():
            module.forward = lambda *_, _out=out, **__: _out
        yield
    finally:
        for module, forward in before.items():
            del module.forward
            if forward is not None:
                module.forward = forward


def nll(logs: Tensor, ids: Tensor) -> float:
    """Mean negative log-likelihood per token [nats]."""
    return float(F.nll_loss(logs[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
