"""Distil labcoder-draft from labcoder: match the teacher's whole next-token distribution (Hinton et al. 2015, T = 1).

A draft is worth what the teacher accepts of it, so the loss is the KL divergence to the teacher alone; the true next
token enters only through the teacher.
"""

import json

import torch
from transformers import LlamaForCausalLM

from .loop import bits_per_byte, llama, token_stream, train
from .pretrain import arguments, finish, plan_of

SHAPE = {"hidden": 192, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate": 512}


def main() -> None:
    """Command line of the distillation step."""
    parser = arguments(__doc__)
    parser.add_argument("--teacher", required=True, help="folder of the trained labcoder")
    args = parser.parse_args()
    plan = plan_of(args)
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, held = (
        token_stream(args.run / "tokens.npy", device),
        token_stream(args.run / "stdlib.npy", device),
    )
    record = json.loads((args.run / "corpus.json").read_text())
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    teacher = (
        LlamaForCausalLM.from_pretrained(args.teacher, dtype=dtype).to(device).eval().requires_grad_(False)
    )
    student = llama(**SHAPE).to(device)
    print(f"{sum(p.numel() for p in student.parameters()) / 1e6:.2f}M parameters, {plan.steps} steps")

    def divergence(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids=inputs, use_cache=False).logits.float().log_softmax(-1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = student(input_ids=inputs, use_cache=False).logits
        given = logits.float().log_softmax(-1)
        return (wanted.exp() * (wanted - given)).sum(-1).mean()

    step = torch.compile(divergence, dynamic=False) if device.type == "cuda" else divergence

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return step(batch[:, :-1])

    def evaluate() -> float:
        return bits_per_byte(student, held, record["stdlib_bytes"])

    finish(student, args, plan, train(student, tokens, loss_of, evaluate, plan))


if __name__ == "__main__":
    main()
