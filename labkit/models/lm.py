"""LM: a model with its tokenizer, and where and in what precision it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labkit.errors import LabkitError


@dataclass
class LM:
    """What `load` returns and every technique of the course works on.

    Args:
        model: a transformers decoder-only model, in evaluation mode.
        tokenizer: its tokenizer.
        name: what the model is called in tables and recorded results.
        device: where the weights are.
        dtype: what the weights are stored as.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> Any:
        """The configuration of the text model (its layers, heads and widths)."""
        return self.model.config.get_text_config(decoder=True)

    def encode(self, text: str) -> torch.Tensor:
        """Token ids of `text` as LongTensor [1, n] on the device, with the special tokens it expects."""
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        return torch.tensor([ids], dtype=torch.long, device=self.device)

    def decode(self, ids: torch.Tensor | Sequence[int]) -> str:
        """The text of one sequence of ids (list, [n] or [1, n]), special tokens left out."""
        flat = ids.reshape(-1).tolist() if isinstance(ids, torch.Tensor) else list(ids)
        return str(self.tokenizer.decode(flat, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights really take: tied weights and views of one storage count once."""
        storages = {
            (tensor.device, tensor.untyped_storage().data_ptr()): tensor.untyped_storage().nbytes()
            for tensor in self.model.state_dict().values()
        }
        return sum(storages.values())


def check_positions(lm: LM, tokens: int, what: str) -> None:
    """Refuse more tokens than the model has positions for.

    Args:
        what: the tokens in words, such as "a context of 4096".

    Raises:
        LabkitError: too many.
    """
    limit = getattr(lm.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit and tokens > limit:
        raise LabkitError(
            f"{lm.name} has {limit} positions, too few for {what}.", f"Use {limit} tokens or fewer in all."
        )
