"""Fused kernels on a transformers model, and off again.

    report = fuse.apply(lm)         # print(report): which parts apply to which modules, and why others do not
    fuse.remove(lm)                 # the model as it was, bit for bit

A layer's forward is replaced on the instance, and only serves calls with `kv`, the packed steps of the caches and
the engine. Everything else, `generate` and training included, runs the model's own code, on the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from labkit.errors import LabkitError
from labkit.fuse.build import Builder, Launching, Parts
from labkit.fuse.layer import needs_gradient
from labkit.fuse.merge import Merged, Owners
from labkit.fuse.operations import FusedNorm, PackedWeights, Weights, settled
from labkit.fuse.pieces import Sources, Unfit, linear_reason, norm_of
from labkit.fuse.probe import alike, check
from labkit.fuse.recognise import Plan, recognise
from labkit.fuse.report import Kept, Report
from labkit.fuse.watch import Watch
from labkit.kernels.device import available
from labkit.models import LM

STATE = "_labkit_fuse"


def parts() -> dict[str, str]:
    """The parts of `apply`, and what each does."""
    return {
        "merge": "q, k and v as one product, gate and up as one; the merged weight owns the memory",
        "norm": "RMSNorm in one kernel, with the residual addition before it unless the projection has done that",
        "rope": "norms of heads, rotation and the write to the paged store in one kernel; best with merge",
        "gated": "activation(gate) · up in one kernel; best with merge",
        "linear": "matrix products of few tokens by kernels made for them",
        "residual": "the residual added by the kernels of the output and down projections themselves",
        "attention": "all chunks of a step in one attention kernel",
    }


def apply(
    lm: LM,
    *,
    merge: bool = True,
    norm: bool = True,
    rope: bool = True,
    gated: bool = True,
    linear: bool = True,
    residual: bool = True,
    attention: bool = True,
) -> Report:
    """Fuse what is recognised. A part that is off is done as the model does it; with all off nothing changes.

    Applying again undoes the last time first. What is recognised is the model as it is now: whoever changes its
    modules or moves it applies again, and the next packed step says so.

    If it fails, for want of memory say, the model is as it was.

    Returns:
        What applies to which modules, and why others stay as they were.
    """
    remove(lm)
    state = Applied(lm.model, Parts(merge, norm, rope, gated, linear, residual, attention))
    try:
        state.install()
    except BaseException:
        state.remove()
        raise
    return state.report


def remove(lm: LM) -> None:
    """Give the model back as it was: its forwards, and for every Parameter memory of its own."""
    state = getattr(lm.model, STATE, None)
    if state is not None:
        state.remove()


class Applied:
    """What is fused on one model.

    Attributes:
        report: what was done.
        packed: whether a step with `kv` is running, for the modules outside the layers.
        varlen: whether all layers attend by one kernel for all chunks, which a captured graph needs.
    """

    def __init__(self, model: Any, chosen: Parts) -> None:
        self.model, self.parts = model, chosen
        self.report = Report()
        self.packed = self.varlen = False
        self._merged: list[Merged] = []
        self._replaced: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._watch = Watch()
        self._device = model.device
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Recognise, test and replace, layer by layer."""
        if not self.parts.chosen:
            return
        setattr(self.model, STATE, self)
        sources, owners, launching = Sources(), Owners(self.model), Launching(self.model)
        tested: dict[Any, Unfit | None] = {}
        for name, layer in decoder_layers(self.model):
            try:
                plan = recognise(name, layer, sources)
                _test(plan, tested)
            except (Unfit, AttributeError, TypeError, ValueError) as reason:
                self.report.kept.append(Kept(name, "", str(reason)))
                continue
            builder = Builder(plan, self.parts, owners, launching)
            try:
                fused = builder.build()
            finally:
                self._merged += builder.merged
            self._replace(name, layer, fused.forward, builder.applied)
            self.report.kept += builder.kept
        if self._replaced:
            whole = not any(kept.part == "" for kept in self.report.kept)
            self.varlen = self.parts.attention and whole and available(self.model.device)
            self._install_ends(sources, launching)
            self._hooks = [
                self.model.register_forward_pre_hook(self._before, with_kwargs=True),
                self.model.register_forward_hook(self._after, always_call=True),
            ]

    def remove(self) -> None:
        """Undo everything, and leave alone what others have put in its place since."""
        for hook in self._hooks:
            hook.remove()
        while (
            self._replaced
        ):  # forwards hold merged weights, which must go one by one as they are copied below
            self._restore(*self._replaced.pop())
        while self._merged:
            self._merged[-1].release()
            self._merged.pop()
        self._hooks, self._watch = [], Watch()
        if getattr(self.model, STATE, None) is self:
            delattr(self.model, STATE)

    def _restore(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        if vars(module).get("forward") == forward:
            del module.forward

    def _install_ends(self, sources: Sources, launching: Launching) -> None:
        """The norm after the last layer, and the projection to logits."""
        names = {module: name for name, module in self.model.named_modules()}
        for module in self.model.get_decoder().children() if self.parts.norm else ():
            if getattr(getattr(module, "weight", None), "ndim", 0) == 1:
                try:
                    norm = FusedNorm(norm_of(module, sources), launching.pdl)
                    self._replace(names[module], module, End(self, module, norm).forward, {"norm"})
                except Unfit as reason:
                    self.report.kept.append(Kept(names[module], "norm", str(reason)))
        head = self.model.get_output_embeddings() if self.parts.linear else None
        if head is not None and (strange := linear_reason(head)):
            self.report.kept.append(Kept(names[head], "linear", strange))
        elif head is not None:
            weights = launching.product(head, fused=True, folds=False)
            self._replace(names[head], head, End(self, head, weights).forward, {"linear"})

    def _replace(
        self, name: str, module: nn.Module, forward: Callable[..., Any], applied: Container[str]
    ) -> None:
        module.forward = forward
        self._replaced.append((module, forward))
        self.report.applied[name] = tuple(part for part in self.parts.chosen if part in applied)
        for each in module.modules():  # what the fused forward relies on
            self._watch.add(each, forward=each is not module)

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.packed = kwargs.get("kv") is not None
        if not self.packed:
            return
        if not self._watch.same:
            raise LabkitError("A module, a weight or a forward was replaced after fuse.apply.", AGAIN)
        if self.model.device != self._device or not all(merged.intact for merged in self._merged):
            raise LabkitError("The model was moved, converted or copied after fuse.apply.", AGAIN)

    def _after(self, *_: Any) -> None:
        self.packed = False


AGAIN = "Call labkit.fuse.remove(lm), then labkit.fuse.apply(lm) again."


@dataclass(frozen=True, eq=False)
class End:
    """A module outside the layers: fused while a packed step runs, itself otherwise."""

    state: Applied
    module: nn.Module
    run: FusedNorm | Weights | PackedWeights

    def forward(self, x: Tensor) -> Tensor:
        """x [1, T, H], as the module's own forward."""
        if not self.state.packed or needs_gradient(self.module, x):
            return cast(Tensor, type(self.module).forward(self.module, x))
        out = self.run(x[0])
        return settled(out[0] if isinstance(out, tuple) else out)[None]


def _test(plan: Plan, tested: dict[Any, Unfit | None]) -> None:
    """Raise Unfit if the fused layer is another than the layer; layers that are alike are tested once."""
    kind = alike(plan)
    if kind not in tested:
        try:
            check(plan)
            tested[kind] = None
        except Unfit as reason:
            tested[kind] = reason
    if (found := tested[kind]) is not None:
        raise found


def decoder_layers(model: Any) -> list[tuple[str, nn.Module]]:
    """The decoder layers: the list of modules that is as long as the configuration says."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (each for each in model.get_decoder().children() if isinstance(each, nn.ModuleList))
    layers = next((each for each in lists if len(each) == count), ())
    names = {module: name for name, module in model.named_modules()}
    return [(names[layer], layer) for layer in layers]
