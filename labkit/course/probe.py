"""How good a changed model still is, on a few pages: quick enough to ask after every change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.errors import LabkitError
from labkit.models import LM
from labkit.quality import Interval, evaluation_text, paired_bootstrap
from labkit.quality.scoring import tokenize


@dataclass(frozen=True)
class Reading:
    """A model beside the one it was made from.

    Args:
        perplexity: on the pages.
        bits_per_byte: the same loss by byte of text.
        worse: perplexity above the reference's, as a share, with its interval (paired bootstrap over pages).
        kl: mean KL(reference ‖ model) [nats a token].
        agreement: share of tokens at which both find the same one likeliest.
    """

    perplexity: float
    bits_per_byte: float
    worse: Interval
    kl: float
    agreement: float


class Probe:
    """Pages of the evaluation text, and what a reference says to them.

    Args:
        lm: the reference.
        pages, length: how many pieces of the text, evenly spaced, and tokens of each.
        text: "fixed" or another evaluation text's name.

    Raises:
        LabkitError: the text is too short.
    """

    def __init__(self, lm: LM, *, pages: int = 10, length: int = 128, text: str = "fixed") -> None:
        ids, sizes = tokenize(lm, evaluation_text(text))
        if pages < 2 or length < 2 or len(ids) < pages * length:
            raise LabkitError(f"{len(ids)} tokens do not make {pages} pages of {length}.", "Ask for less.")
        starts = torch.linspace(0, len(ids) - length, pages).long()
        places = starts[:, None] + torch.arange(length)
        self.ids = ids[places].to(lm.device)
        self.bytes = int(sizes[places[:, 1:]].sum())
        self.logs = self._logs(lm)
        self.nats = self._nats(self.logs)

    @property
    def tokens(self) -> int:
        """That are predicted."""
        return self.nats.numel()

    @property
    def reference(self) -> Reading:
        """What `read` says of the reference itself."""
        return self._reading(self.logs, self.nats)

    def read(self, lm: LM) -> Reading:
        """A model's quality on the pages.

        Raises:
            LabkitError: another vocabulary, or NaN.
        """
        logs = self._logs(lm)
        if logs.shape != self.logs.shape:
            raise LabkitError(f"{lm.name} has another vocabulary.", "Compare models of one family.")
        nats = self._nats(logs)
        if not bool(nats.isfinite().all()):
            raise LabkitError(f"{lm.name} gives NaN on this text.", "Undo the last change to it.")
        return self._reading(logs, nats)

    def _reading(self, logs: Tensor, nats: Tensor) -> Reading:
        moved = paired_bootstrap(self.nats.mean(1), nats.mean(1))
        loss = nats.mean().item()
        kl = F.kl_div(logs, self.logs, log_target=True, reduction="sum") / self.tokens
        return Reading(
            perplexity=math.exp(loss),
            bits_per_byte=nats.sum().item() / math.log(2) / self.bytes,
            worse=Interval(math.expm1(moved.mean), math.expm1(moved.low), math.expm1(moved.high)),
            kl=max(float(kl), 0.0),
            agreement=(logs.argmax(-1) == self.logs.argmax(-1)).double().mean().item(),
        )

    @torch.no_grad()
    def _logs(self, lm: LM) -> Tensor:
        """Log probabilities [pages, length − 1, vocabulary] in float32."""
        return lm.model(self.ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)

    def _nats(self, logs: Tensor) -> Tensor:
        """Minus the log probability of each next token, [pages, length − 1] on the CPU."""
        return -logs.gather(-1, self.ids[:, 1:, None])[..., 0].double().cpu()
