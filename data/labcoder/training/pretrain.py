"""Train labcoder on the gathered corpus."""

import argparse
import json
import sys
from pathlib import Path

import torch

from .loop import Plan, bits_per_byte, llama, save, token_stream, train

SHAPE = {"hidden": 384, "layers": 7, "heads": 6, "kv_heads": 2, "intermediate": 1024}


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that both training commands share."""
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


def plan_of(args: argparse.Namespace) -> Plan:
    """The training plan that the options describe."""
    names = ("batch", "length", "long_length", "long_from", "long_every", "lr", "seed")
    return Plan(int(args.tokens), **{name: getattr(args, name) for name in names})


def finish(model: torch.nn.Module, args: argparse.Namespace, plan: Plan, rows: list[dict]) -> None:
    """Save weights, tokenizer and the training log."""
    save(model, args.run / "tokenizer.json", args.out)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    words = [
        Path(word).name if "/" in word else word for word in sys.argv[1:]
    ]  # folders of this machine say nothing
    log = {
        "command": " ".join(words),
        "device": device,
        "torch": torch.__version__,
        "plan": vars(plan),
        "log": rows,
    }
    (args.out / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")


def main() -> None:
    """Command line of the pretraining step."""
    args = arguments(__doc__).parse_args()
    plan = plan_of(args)
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, held = (
        token_stream(args.run / "tokens.npy", device),
        token_stream(args.run / "stdlib.npy", device),
    )
    record = json.loads((args.run / "corpus.json").read_text())
    model = llama(**SHAPE).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {plan.steps} steps")

    def objective(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(input_ids=inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    step = torch.compile(objective, dynamic=False) if device.type == "cuda" else objective

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return step(batch[:, :-1], batch[:, 1:])

    def evaluate() -> float:
        return bits_per_byte(model, held, record["stdlib_bytes"])

    finish(model, args, plan, train(model, tokens, loss_of, evaluate, plan))


if __name__ == "__main__":
    main()
