"""Two models on the same tokens: KL divergence and top-1 agreement."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.errors import LabkitError
from labkit.models import LM
from labkit.models.lm import check_positions
from labkit.quality.scoring import CONTEXT, STRIDE, tokenize, window_logits, windows


@dataclass(frozen=True)
class Comparison:
    """A candidate against a reference. All tensors are [n], one entry a predicted token.

    Args:
        kl: KL(reference ‖ candidate) of the two next-token distributions [nats].
        agrees: 1.0 where both find the same token likeliest, else 0.0.
        window: index of the token's window, the unit that a bootstrap draws.
    """

    kl: torch.Tensor
    agrees: torch.Tensor
    window: torch.Tensor

    @property
    def kl_divergence(self) -> float:
        """Mean KL(reference ‖ candidate) per token [nats]."""
        return self.kl.mean().item()

    @property
    def top1_agreement(self) -> float:
        """Share of tokens, 0 to 1, at which greedy decoding would choose alike."""
        return self.agrees.mean().item()


@torch.no_grad()
def compare(
    reference: LM, candidate: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE
) -> Comparison:
    """Run both models over the windows of a text.

    Raises:
        LabkitError: the tokenizers or vocabularies differ, or a model gives NaN.
    """
    ids, _ = tokenize(reference, text)
    other, _ = tokenize(candidate, text)
    if not torch.equal(ids, other):
        raise LabkitError(
            f"{reference.name} and {candidate.name} cut the text into different tokens.",
            "Compare models that share a tokenizer, or use bits per byte.",
        )
    for lm in (reference, candidate):
        check_positions(lm, context, f"a context of {context}")
    kl, agrees, index = [], [], []
    for number, window in enumerate(windows(len(ids), context, stride)):
        pairs = zip(window_logits(reference, ids, window), window_logits(candidate, ids, window), strict=True)
        for ours, theirs in pairs:
            divergence, same = _compare_rows(ours, theirs.to(ours.device))
            kl.append(divergence)
            agrees.append(same)
            index.append(torch.full((len(same),), number))
    divergences = torch.cat(kl)
    if divergences.isnan().any():
        raise LabkitError(
            f"{reference.name} or {candidate.name} gives NaN on this text.",
            "A change has broken a model; undo the last one.",
        )
    return Comparison(divergences, torch.cat(agrees), torch.cat(index))


def kl_divergence(
    reference: LM, candidate: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE
) -> float:
    """Mean KL(reference ‖ candidate) per token [nats]; see `compare`."""
    return compare(reference, candidate, text, context=context, stride=stride).kl_divergence


def top1_agreement(
    reference: LM, candidate: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE
) -> float:
    """Share of tokens at which both models have the same likeliest next token; see `compare`."""
    return compare(reference, candidate, text, context=context, stride=stride).top1_agreement


def _compare_rows(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL and agreement of logits [m, vocabulary] each.

    Computed in fp32, where a token's KL is off by some 1e-6 nats and may come out just below zero; fp64 would
    double the largest tensors here. Returned on the CPU in fp64, for sums over long texts.
    """
    if ours.shape != theirs.shape:
        raise LabkitError(
            f"The models have vocabularies of {ours.shape[-1]} and {theirs.shape[-1]} tokens.",
            "Compare models of one family.",
        )
    log_p, log_q = ours.log_softmax(-1), theirs.log_softmax(-1)
    divergence = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    same = ours.argmax(-1) == theirs.argmax(-1)
    return divergence.double().cpu(), same.double().cpu()
