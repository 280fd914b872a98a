"""Which modules of a model there is something to do with."""

from __future__ import annotations

from torch import nn

from labkit.models import LM


def linears(lm: LM) -> dict[str, nn.Linear]:
    """The linear layers of the decoder by name, in the order of the model; not the last projection."""
    head = lm.model.get_output_embeddings()
    return {
        name: module
        for name, module in lm.model.named_modules()
        if type(module) is nn.Linear and module is not head
    }


def decoder_layers(lm: LM) -> list[nn.Module]:
    """The list of modules that is as long as the configuration says."""
    lists = (each for each in lm.model.get_decoder().children() if isinstance(each, nn.ModuleList))
    return next((list(each) for each in lists if len(each) == lm.config.num_hidden_layers), [])


def parent_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds something, and its name there."""
    owner, _, name = path.rpartition(".")
    return model.get_submodule(owner), name
