"""What both training commands do around their loss: options, the corpus on the device, training, saving."""

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from transformers import LlamaForCausalLM

from .loop import Plan, bits_per_byte, save, token_stream, train

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that both commands share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", type=Path, required=True, help="folder written by training.corpus")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=float, required=True)
    parser.add_argument("--batch", type=int, default=Plan.batch)
    parser.add_argument("--length", type=int, default=Plan.length)
    parser.add_argument("--long-length", type=int, default=Plan.long_length)
    parser.add_argument("--long-from", type=float, default=Plan.long_from)
    parser.add_argument("--long-every", type=int, default=Plan.long_every)
    parser.add_argument("--lr", type=float, default=Plan.lr)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    return parser


@dataclass(frozen=True)
class Run:
    """One training run: its plan, the token streams on the device, and where the result goes."""

    plan: Plan
    tokens: torch.Tensor
    held: torch.Tensor
    held_bytes: int
    tokenizer_file: Path
    out: Path

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Read the corpus folder, and seed everything."""
        names = ("batch", "length", "long_length", "long_from", "long_every", "lr", "seed")
        plan = Plan(int(args.tokens), **{name: getattr(args, name) for name in names})
        torch.manual_seed(plan.seed)
        torch.set_float32_matmul_precision("high")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tokens, held = (token_stream(args.run / f"{name}.npy", device) for name in ("tokens", "stdlib"))
        record = json.loads((args.run / "corpus.json").read_text())
        return cls(plan, tokens, held, record["stdlib_bytes"], args.run / "tokenizer.json", args.out)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.tokens.device

    def logits(self, model: LlamaForCausalLM, inputs: torch.Tensor) -> torch.Tensor:
        """Logits [rows, length, vocabulary] in fp32, computed in bf16 on a GPU."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return model(input_ids=inputs, use_cache=False).logits.float()

    def fit(self, model: LlamaForCausalLM, loss: Loss) -> None:
        """Train `model` on `loss(inputs, targets)`; a run that is cut off leaves its last checkpoint."""
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size / 1e6:.2f}M parameters, {self.plan.steps} steps")
        step = torch.compile(loss, dynamic=False) if self.device.type == "cuda" else loss

        def evaluate() -> float:
            save(copy.deepcopy(model), self.tokenizer_file, self.out)
            return bits_per_byte(model, self.held, self.held_bytes)

        rows = train(model, self.tokens, lambda batch: step(batch[:, :-1], batch[:, 1:]), evaluate, self.plan)
        save(model, self.tokenizer_file, self.out)
        self._write_log(rows)

    def _write_log(self, rows: list[dict]) -> None:
        # folders of one machine say nothing to others
        words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
        log = {
            "command": " ".join(words),
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "plan": vars(self.plan),
            "log": rows,
        }
        (self.out / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")
