"""Tokens as sequences, and the loss on them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from labkit.errors import LabkitError
from labkit.models import LM
from labkit.models.lm import check_positions


def sequences_of(lm: LM, tokens: Tensor, length: int, count: int | None = None) -> Tensor:
    """The first whole sequences of some tokens, [sequences, length] on the CPU.

    Args:
        count: how many; None means all that the tokens make.

    Raises:
        LabkitError: too few tokens, or sequences that do not fit the model.
    """
    if length < 2:
        raise LabkitError(f"Sequences of {length} predict nothing.", "Give a length of at least 2 tokens.")
    check_positions(lm, length, f"sequences of {length}")
    flat = torch.as_tensor(tokens, dtype=torch.long).flatten().cpu()
    wanted = len(flat) // length if count is None else count
    if wanted < 1 or len(flat) < wanted * length:
        raise LabkitError(
            f"{len(flat)} tokens do not make {max(wanted, 1)} sequences of {length}.",
            "Give more tokens, or ask for shorter or fewer sequences.",
        )
    return flat[: wanted * length].reshape(wanted, length)


def sequence_loss(lm: LM, ids: Tensor) -> Tensor:
    """Mean cross-entropy [nats per token] of each sequence of ids [sequences, length], in fp32 or wider."""
    logits = lm.model(ids, use_cache=False).logits[:, :-1]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = functional.cross_entropy(wide.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses.unflatten(0, (len(ids), -1)).mean(1)


@torch.no_grad()
def mean_loss(lm: LM, sequences: Tensor, batch: int) -> float:
    """Mean loss [nats per token] over sequences [n, length]."""
    parts = [sequence_loss(lm, part.to(lm.device)).double().cpu() for part in sequences.split(batch)]
    return torch.cat(parts).mean().item()
