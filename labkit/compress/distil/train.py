"""Distillation: the student reads training text, the teacher reads it too, and the student is moved towards it.

Equal budget means: as many tokens and as many optimiser steps, whatever the losses are. The teacher's outputs are
computed as they are needed; kept, they would take vocabulary × 2 bytes a token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress.distil import losses
from labkit.compress.distil.difficulty import share, temperatures
from labkit.compress.distil.settings import HeldOut, History, Settings, Step
from labkit.compress.prune.recover import learning_rate, trainable
from labkit.compress.prune.rows import sequence_loss, sequences_of
from labkit.errors import LabkitError
from labkit.models import LM


def distil(
    teacher: LM,
    student: LM,
    tokens: Tensor,
    settings: Settings | None = None,
    *,
    progress: Callable[[int, HeldOut | None], object] = lambda steps, measured: None,
) -> History:
    """Train the student, in place, by AdamW on sequences of a training text; the teacher stays as it is.

    Both are in evaluation mode throughout. The same arguments give the same student, on one kind of device. On a GPU
    products are computed in bf16; weights are fp32 while they are trained, then what they were.

    Args:
        tokens: LongTensor [n] of training text; the last `held_out` sequences are kept for measuring.
        progress: called with the steps done and the latest measurement, before the first step and after each.

    Raises:
        LabkitError: settings that make no sense, models that do not match, too few tokens, or a loss that is not
            finite.
    """
    plan = settings or Settings()
    check(teacher, student, plan)
    began = time.perf_counter()
    with _eager(teacher), _eager(student), trainable(student) as weights:
        room = _Room(teacher, student, plan, tokens)
        weights = [*weights, *room.maps.parameters()]
        fused = student.device.type == "cuda"
        optimiser = torch.optim.AdamW(
            weights, lr=plan.lr[0], betas=(0.9, 0.95), weight_decay=0.0, fused=fused
        )
        found, rates = [], []
        measured = [room.measure(0)] if plan.held_out else []
        progress(0, measured[-1] if measured else None)
        for step, ids in enumerate(room.batches()):
            rates.append(learning_rate(step, plan.steps, plan.lr, warmup=plan.steps // 10))
            for group in optimiser.param_groups:
                group["lr"] = rates[-1]
            found.append(room.step(ids, optimiser, weights))
            if plan.held_out and ((step + 1) % plan.every == 0 or step + 1 == plan.steps):
                measured.append(room.measure(step + 1))
            progress(step + 1, measured[-1] if measured else None)
        lines = torch.stack(found).tolist() if found else []
    if not all(math.isfinite(value) for line in lines for value in line):
        raise LabkitError(f"A loss of {student.name} is not finite.", "Lower the first learning rate.")
    steps = tuple(
        Step(number, rate, dict(zip(room.names, line, strict=True)))
        for number, (rate, line) in enumerate(zip(rates, lines, strict=True))
    )
    return History(steps, tuple(measured), room.floor, room.read(plan.steps), time.perf_counter() - began)


def check(teacher: LM, student: LM, plan: Settings) -> None:
    """Refuse what cannot be trained.

    Raises:
        LabkitError: settings that make no sense, or a student that does not match its teacher.
    """
    weights = {name: getattr(plan, name) for name in ("outputs", "hidden", "attention", "labels")}
    whole = min(plan.batch, plan.every) >= 1 and min(plan.steps, plan.held_out) >= 0
    if not whole or plan.clip <= 0 or not plan.lr[0] >= plan.lr[1] > 0:
        raise LabkitError(
            f"Cannot train {plan.steps} steps of {plan.batch} at {plan.lr}, clipped at {plan.clip}.",
            "Give steps and held_out ≥ 0, batch and every ≥ 1, clip > 0 and lr first ≥ last > 0.",
        )
    if min(weights.values()) < 0 or not any(weights.values()):
        raise LabkitError(f"The weights {weights} make no loss.", "Give some above 0 and none below.")
    if plan.temperature <= 0:
        raise LabkitError(f"{plan.temperature} is no temperature.", "Give one above 0, such as 2.")
    share(0, 1, plan.curriculum)
    temperatures(torch.zeros(1), plan.temperature, plan.spread)
    if student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab() or (
        student.config.vocab_size != teacher.config.vocab_size
    ):
        raise LabkitError(
            f"{student.name} and {teacher.name} have different vocabularies.",
            "A student is made from its teacher's tokenizer: student(teacher, …).",
        )
    if student.model is teacher.model or student.device != teacher.device:
        raise LabkitError(
            "The student is its own teacher, or on another device.", "Make one with student(teacher, …)."
        )
    losses.matching(student.config.num_hidden_layers, teacher.config.num_hidden_layers)


class _Room:
    """One training: the two models, the text in its order, and the linear maps between their widths."""

    def __init__(self, teacher: LM, student: LM, plan: Settings, tokens: Tensor) -> None:
        self.teacher, self.student, self.plan = teacher, student, plan
        rows = sequences_of(teacher, tokens, plan.length).to(student.device)
        if len(rows) <= plan.held_out:
            raise LabkitError(
                f"{len(rows)} sequences of {plan.length} are too few to keep {plan.held_out} for measuring.",
                "Give more tokens, or shorter or fewer sequences.",
            )
        self.rows, self.probe = rows[: len(rows) - plan.held_out], rows[len(rows) - plan.held_out :]
        text = teacher.decode(self.probe.flatten()) if plan.held_out else ""
        self.bytes_per_token = len(text.encode()) / max(self.probe.numel(), 1)
        self.layers = losses.matching(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
        self.maps = self._linear_maps()
        self.floor: float | None = None
        self.names = [
            name for name in ("outputs", "hidden", "attention", "labels") if getattr(plan, name) > 0
        ]

    def _linear_maps(self) -> nn.ModuleList:
        """One for each matched layer, where widths differ and hidden states are compared."""
        narrow, wide = self.student.config.hidden_size, self.teacher.config.hidden_size
        if self.plan.hidden == 0 or narrow == wide:
            return nn.ModuleList()
        generator = torch.Generator().manual_seed(self.plan.seed)
        maps = [nn.utils.skip_init(nn.Linear, narrow, wide, bias=False) for _ in self.layers]
        for each in maps:
            nn.init.normal_(each.weight, std=narrow**-0.5, generator=generator)
        wider = torch.promote_types(self.student.dtype, torch.float32)
        return nn.ModuleList(maps).to(self.student.device, wider)

    def read(self, steps: int) -> int:
        """Tokens trained on in so many steps."""
        return steps * self.plan.batch * self.plan.length

    def batches(self) -> Iterator[Tensor]:
        """Ids [batch, length] of each step: drawn from all sequences, or from the easiest so far."""
        plan, order = self.plan, torch.arange(len(self.rows))
        if plan.curriculum < 1:
            order = easiest_first(self.teacher, self.rows, plan.batch).cpu()
        # the draws do not depend on the losses: without a curriculum, all students of a seed read the same text
        drawn = torch.rand(plan.steps, plan.batch, generator=torch.Generator().manual_seed(plan.seed))
        for step in range(plan.steps):
            open_to = max(1, round(share(step, plan.steps, plan.curriculum) * len(order)))
            yield self.rows[order[(drawn[step] * open_to).long()].to(self.rows.device)]

    def step(self, ids: Tensor, optimiser: torch.optim.Optimizer, weights: list[Any]) -> Tensor:
        """One step on ids [batch, length]; every loss before its weight [losses], on the device."""
        with torch.enable_grad():
            with _autocast(self.student):
                terms = self._terms(ids)
            total = sum(getattr(self.plan, name) * terms[name] for name in self.names)
        total.backward()
        nn.utils.clip_grad_norm_(weights, self.plan.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return torch.stack([terms[name].detach() for name in self.names])

    def _terms(self, ids: Tensor) -> dict[str, Tensor]:
        plan, terms = self.plan, {}
        inside = {
            "use_cache": False,
            "output_hidden_states": plan.hidden > 0,
            "output_attentions": plan.attention > 0,
        }
        ours: Any = self.student.model(ids, **inside)
        logits, targets = ours.logits[:, :-1], ids[:, 1:]
        if plan.labels:
            terms["labels"] = losses.labels(logits, targets)
        if not plan.asks_teacher:
            return terms
        with torch.no_grad():
            theirs: Any = self.teacher.model(ids, **inside)
            wanted = theirs.logits[:, :-1]
            heat: float | Tensor = plan.temperature
            if plan.spread:
                heat = temperatures(losses.token_losses(wanted, targets), plan.temperature, plan.spread)
        if plan.outputs:
            terms["outputs"] = losses.outputs(logits, wanted, heat)
        if plan.hidden:
            maps: list[Any] = list(self.maps) or [None] * len(self.layers)
            pairs = zip(ours.hidden_states[1:], self.layers, maps, strict=True)
            # the last state of either model comes after its last norm
            parts = [losses.hidden(one, theirs.hidden_states[at + 1], linear) for one, at, linear in pairs]
            terms["hidden"] = torch.stack(parts).mean()
        if plan.attention:
            maps_of = zip(ours.attentions, self.layers, strict=True)
            terms["attention"] = torch.stack(
                [losses.attention(one, theirs.attentions[at]) for one, at in maps_of]
            ).mean()
        return terms

    @torch.no_grad()
    def measure(self, step: int) -> HeldOut:
        """Bits per byte of the student and its distance from the teacher, on the held-out sequences."""
        found = []
        for ids in self.probe.split(self.plan.batch):
            with _autocast(self.student):
                ours, theirs = (
                    lm.model(ids, use_cache=False).logits[:, :-1] for lm in (self.student, self.teacher)
                )
            means = [losses.labels(each, ids[:, 1:]) for each in (ours, theirs)]
            found.append(len(ids) * torch.stack([*means, losses.outputs(ours, theirs)]).double())
        nats, floor, kl = (torch.stack(found).sum(0) / len(self.probe)).tolist()
        if not math.isfinite(nats):
            raise LabkitError(
                f"The loss of {self.student.name} is no longer finite.", "Lower the first learning rate."
            )
        self.floor = floor / math.log(2) / self.bytes_per_token
        return HeldOut(step, self.read(step), nats / math.log(2) / self.bytes_per_token, kl)


@torch.no_grad()
def easiest_first(teacher: LM, rows: Tensor, batch: int) -> Tensor:
    """Indices [sequences] of rows [sequences, length] by the teacher's mean loss, the lowest first."""
    with _autocast(teacher):
        found = [sequence_loss(teacher, part.to(teacher.device)) for part in rows.split(batch)]
    return torch.cat(found).sort(stable=True).indices


def _autocast(lm: LM) -> Any:
    """bf16 products on a GPU; a CPU computes in the weights' own precision."""
    return torch.autocast("cuda", torch.bfloat16) if lm.device.type == "cuda" else nullcontext()


@contextmanager
def _eager(lm: LM) -> Iterator[None]:
    """Attention step by step: it can give its maps, and its gradients add up in the same order each time."""
    model: Any = lm.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
