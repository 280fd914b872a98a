"""Where the scale of a linear layer's input can go for nothing.

    W x = (W · diag(s)) (x / s)

Dividing x by s costs nothing if what made x can do it: a norm, in its weight (in 1 + w where the norm is written so),
or an earlier linear layer whose output reaches x channel by channel, in its rows and bias (v before o, up before
down). Which row reaches which channel is asked of the layer itself: in turn, half of the rows are doubled, and the
channels that double with them, bit for bit, spell the number of their row in binary. So repeated KV heads and merged
projections need no special case. A last probe undoes the division at the readers; the layer's output must stay as it
was, else somebody else reads that tensor too.

What has no such place keeps its scale as `input_scale`, multiplied at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from labkit.compress.layers import decoder_layers, linears
from labkit.compress.scaled import Fold
from labkit.models import LM

PROBE_TOKENS = 9
Run = Callable[[], Tensor]


def folds(lm: LM) -> list[Fold]:
    """All tensors that the decoder's linear layers read, in order of use; each layer's name is in one of them."""
    names = {id(module): name for name, module in lm.model.named_modules()}
    found: list[Fold] = []
    with torch.no_grad():
        for layer, args, kwargs in layer_calls(lm):
            probe = Probe(layer, partial(_output, layer, args, kwargs), kv_width(lm))
            found += [probe.fold(readers, names) for readers in probe.groups()]
    inside = {name for fold in found for name in fold.readers}
    return found + [Fold((name,)) for name in linears(lm) if name not in inside]


def layer_calls(lm: LM, ids: Tensor | None = None) -> list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Every decoder layer with the arguments that it gets in a forward.

    Args:
        ids: [B, T]; a few arbitrary tokens if not given.
    """
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    if ids is None:
        ids = torch.arange(1, PROBE_TOKENS + 1)[None] * 31 % lm.config.vocab_size

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((module, args, kwargs))

    with ExitStack() as stack:
        for layer in decoder_layers(lm):
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        lm.model.get_decoder()(ids.to(lm.device), use_cache=False)
    return calls


def _output(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A layer's hidden states."""
    output = layer(*args, **kwargs)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def kv_width(lm: LM) -> int:
    """Columns of all keys, or values, of a token."""
    config = lm.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(
        heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    )


class Probe:
    """One decoder layer, run again and again with something scaled."""

    def __init__(self, layer: nn.Module, run: Run, kv_width: int) -> None:
        self.run, self.kv_width = run, kv_width
        self.read: dict[nn.Module, Tensor] = {}  # the linear layers in order of use
        self.norms: dict[nn.Module, tuple[Tensor, Tensor]] = {}

        def linear(module: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
            self.read[module] = args[0]

        def norm(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            self.norms[module] = (args[0], out)

        with ExitStack() as stack:
            for module in layer.modules():
                if type(module) is nn.Linear or is_norm(module):
                    watch = linear if type(module) is nn.Linear else norm
                    stack.callback(module.register_forward_hook(watch).remove)
            self.out = run()

    def groups(self) -> list[list[nn.Module]]:
        """Linear layers that read one tensor, in order of use."""
        found: dict[int, list[nn.Module]] = {}
        for module, x in self.read.items():
            found.setdefault(id(x), []).append(module)
        return list(found.values())

    def fold(self, readers: list[nn.Module], names: dict[int, str]) -> Fold:
        """What can divide the tensor that they read."""
        x, told = self.read[readers[0]], tuple(names[id(module)] for module in readers)
        for norm, (into, out) in self.norms.items():
            if out is x:
                offset, rows = norm_offset(norm, into, out), torch.arange(x.shape[-1], device=x.device)
                if offset is not None and self._alone(norm, readers, rows, x.shape[-1]):
                    return Fold(told, names[id(norm)], rows, offset)
                return Fold(told)
        earlier = list(self.read)[: list(self.read).index(readers[0])]
        for module in reversed(earlier):
            outputs = _outputs(module)
            for span in self._spans(outputs, x.shape[-1]):
                found = self._rows(module, readers[0], span)
                if found is not None and self._alone(module, readers, found, outputs):
                    return Fold(told, names[id(module)], found)
        return Fold(told)

    def _spans(self, outputs: int, columns: int) -> list[range]:
        """Rows that may reach a tensor: all of them, or the part of a merged projection that holds v, or up."""
        last = [width for width in (self.kv_width, columns) if width < outputs]
        halves = [range(columns)] if columns < outputs else []
        return [range(outputs), *(range(outputs - width, outputs) for width in last), *halves]

    def _rows(self, producer: nn.Module, reader: nn.Module, span: range) -> Tensor | None:
        """The row of the producer that each channel of the reader's input comes from, or None if it is not so."""
        x = self.read[reader]
        places = torch.tensor(span, device=x.device)
        if not bool(self._doubled(producer, reader, places).all()):
            return None
        rows = torch.zeros(x.shape[-1], dtype=torch.long, device=x.device)
        for bit in range(len(span).bit_length()):
            numbers = torch.arange(1, len(span) + 1, device=x.device)
            twice = self._doubled(producer, reader, places[numbers >> bit & 1 == 1])
            if bool((twice < 0).any()):
                return None
            rows |= twice << bit
        return places[rows - 1] if bool((rows > 0).all()) else None

    def _doubled(self, producer: nn.Module, reader: nn.Module, rows: Tensor) -> Tensor:
        """With some rows doubled, which channels [K] are: 1 all tokens' are, 0 none is, -1 neither."""
        factor = self._factor(producer, rows, 2.0)
        seen: list[Tensor] = []
        with scaled_output(producer, factor), watched_input(reader, seen):
            self.run()
        before, after = (each.flatten(0, -2) for each in (self.read[reader], seen[0]))
        alive = (before != 0).any(0)
        same, twice = (after == before).all(0) & alive, (after == 2 * before).all(0) & alive
        return torch.where(twice, 1, torch.where(same, 0, -1))

    def _alone(self, producer: nn.Module, readers: list[nn.Module], rows: Tensor, outputs: int) -> bool:
        """Whether nobody but the readers notices that the producer's rows are scaled."""
        powers = torch.arange(outputs, device=rows.device) * 7 % 5 - 2
        factor = torch.ones(outputs, dtype=self.out.dtype, device=rows.device)
        factor[rows] = (2.0**powers).to(factor)[rows]
        with ExitStack() as stack:
            stack.enter_context(scaled_output(producer, factor))
            for reader in readers:
                stack.enter_context(scaled_input(reader, 1 / factor[rows]))
            return torch.equal(self.run(), self.out)

    def _factor(self, producer: nn.Module, rows: Tensor, value: float) -> Tensor:
        factor = torch.ones(_outputs(producer), dtype=self.out.dtype, device=rows.device)
        factor[rows] = value
        return factor


def _outputs(module: nn.Module) -> int:
    """Rows of its weight."""
    return len(cast(Tensor, module.weight))


def is_norm(module: nn.Module) -> bool:
    """A module of one weight [K], and perhaps a bias."""
    own = dict(module.named_parameters())
    return "weight" in own and own.keys() <= {"weight", "bias"} and own["weight"].ndim == 1


def norm_offset(norm: nn.Module, x: Tensor, out: Tensor) -> float | None:
    """o where the norm multiplies by o + weight, 0 or 1; None if it does neither."""
    own = dict(norm.named_parameters())
    factor = 2.0 ** (torch.arange(len(own["weight"]), device=x.device) % 3 - 1)
    for offset in (0.0, 1.0):
        weight = ((own["weight"].float() + offset) * factor - offset).to(own["weight"].dtype)
        gain = (weight.float() + offset) / (own["weight"].float() + offset)
        changed = {"weight": weight} | ({"bias": own["bias"] * gain} if "bias" in own else {})
        wanted = out.float() * gain
        close = 8 * torch.finfo(out.dtype).eps * wanted.abs().max()
        if bool(((torch.func.functional_call(norm, changed, (x,)).float() - wanted).abs() <= close).all()):
            return offset
    return None


@contextmanager
def scaled_output(module: nn.Module, factor: Tensor) -> Iterator[None]:
    """Multiply what a module gives, while the block runs."""
    handle = module.register_forward_hook(lambda _, __, out: out * factor)
    with ExitStack() as stack:
        stack.callback(handle.remove)
        yield


@contextmanager
def scaled_input(module: nn.Module, factor: Tensor) -> Iterator[None]:
    """Multiply what a module is given, while the block runs."""
    handle = module.register_forward_pre_hook(lambda _, args: (args[0] * factor,))
    with ExitStack() as stack:
        stack.callback(handle.remove)
        yield


@contextmanager
def watched_input(module: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """Collect what a module is given, while the block runs."""
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with ExitStack() as stack:
        stack.callback(handle.remove)
        yield
