"""The training loop that pretraining and distillation share.

Optimiser: Muon (Jordan 2024, torch.optim.Muon with its update matched to AdamW's size, Liu et al. 2025) for the
matrices inside the layers, AdamW for embeddings and norms. Schedule: linear warm-up, constant, linear decay
("warmup-stable-decay", Hu et al. 2024). Sequences are random windows of the token stream; in the later part of
training some are longer, so that the model has seen long contexts when it is finished.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .tokenizer import END_OF_TEXT, VOCABULARY


@dataclass(frozen=True)
class Plan:
    """How long, how wide and how fast to train. Lengths and counts in tokens."""

    tokens: int
    batch: int = 262_144
    length: int = 2048
    long_length: int = 8192
    long_from: float = 0.5  # share of training after which long windows come in
    long_every: int = (
        4  # … in every so many steps: spread out, they never meet a learning rate too small to adapt
    )
    lr: float = 4e-3
    warmup: float = 0.01
    decay: float = 0.5
    weight_decay: float = 0.1
    seed: int = 0

    @property
    def steps(self) -> int:
        return max(1, self.tokens // self.batch)

    def factor(self, step: int) -> float:
        """The learning rate of a step as a share of the peak."""
        warm, fall = max(1, round(self.warmup * self.steps)), max(1, round(self.decay * self.steps))
        return min((step + 1) / warm, 1.0, (self.steps - step) / fall)

    def length_at(self, step: int) -> int:
        """Tokens of a step's windows."""
        long = step >= self.steps * self.long_from and step % self.long_every == 0
        return self.long_length if long else self.length


def llama(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> LlamaForCausalLM:
    """A Llama with head dimension 64, tied embeddings and positions up to 16k, weights in fp32."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        intermediate_size=intermediate,
        tie_word_embeddings=True,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        initializer_range=1 / math.sqrt(hidden),
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 0.02)
        for layer in model.model.layers:  # each layer starts as a small change to the residual stream
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def batches(tokens: torch.Tensor, plan: Plan) -> Iterator[torch.Tensor]:
    """Batches [rows, length + 1] of random windows, on the device of `tokens`, one for each step."""
    generator = torch.Generator(device=tokens.device).manual_seed(plan.seed)
    for step in range(plan.steps):
        length = min(plan.length_at(step), len(tokens) - 2)
        rows = max(1, plan.batch // length)
        starts = torch.randint(len(tokens) - length - 1, (rows, 1), device=tokens.device, generator=generator)
        yield tokens[starts + torch.arange(length + 1, device=tokens.device)].long()


def optimizers(model: torch.nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(
        matrices, lr=plan.lr, weight_decay=plan.weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(rest, lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=rest[0].is_cuda)
    return [muon, adam]


@dataclass
class Log:
    """What a run printed, kept for the model card."""

    rows: list[dict] = field(default_factory=list)

    def add(self, **row: float) -> None:
        self.rows.append(row)
        print("  ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)


def train(
    model: torch.nn.Module, tokens: torch.Tensor, loss_of: Callable, evaluate: Callable, plan: Plan
) -> list[dict]:
    """Minimise `loss_of(batch)` over the plan.

    Returns:
        The log: step, millions of tokens, loss [nats], learning rate, `evaluate()` and thousands of tokens a second.
    """
    opts, log = optimizers(model, plan), Log()
    clock, seen, recent = time.perf_counter(), 0, 0
    every = max(1, plan.steps // 20)
    for step, batch in enumerate(batches(tokens, plan)):
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = plan.lr * plan.factor(step)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        seen += batch[:, 1:].numel()
        recent += batch[:, 1:].numel()
        if step % every == 0 or step == plan.steps - 1:
            value = loss.item()
            rate, recent = recent / (time.perf_counter() - clock), 0
            lr, bits = opts[0].param_groups[0]["lr"], evaluate()
            log.add(step=step, mtokens=seen / 1e6, loss=value, lr=lr, bits_per_byte=bits, ktok_s=rate / 1e3)
            clock = time.perf_counter()
    return log.rows


@torch.no_grad()
def bits_per_byte(
    model: torch.nn.Module, tokens: torch.Tensor, byte_count: int, length: int = 2048, rows: int = 16
) -> float:
    """Mean bits per byte over evenly spread windows of a held-out stream, which was cut from `byte_count` bytes."""
    length = min(length, len(tokens) - 2)
    starts = torch.linspace(0, len(tokens) - length - 2, rows).long().to(tokens.device)
    batch = tokens[starts[:, None] + torch.arange(length + 1, device=tokens.device)].long()
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    return loss.item() / math.log(2) * len(tokens) / byte_count


def save(model: LlamaForCausalLM, tokenizer_file: Path, out: Path) -> None:
    """Write bf16 safetensors in files of at most 15 MB, with the tokenizer."""
    model.to(torch.bfloat16).save_pretrained(out, max_shard_size="15MB")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=16384,
    )
    tokenizer.save_pretrained(out)


def token_stream(path: Path, device: torch.device) -> torch.Tensor:
    """A stream of token ids as int16 on the device (ids stay below 8192)."""
    return torch.from_numpy(np.load(path).astype(np.int16)).to(device)
