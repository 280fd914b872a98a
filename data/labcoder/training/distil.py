"""Distil labcoder-draft from labcoder: match the teacher's whole next-token distribution (Hinton et al. 2015, T = 1).

A draft is worth what the teacher accepts of it, so the loss is the KL divergence to the teacher alone; the true next
token enters only through the teacher.
"""

import torch
from transformers import LlamaForCausalLM

from .loop import llama
from .run import Run, arguments

SHAPE = {"hidden": 192, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate": 512}


def main() -> None:
    """Command line of the distillation step."""
    parser = arguments(__doc__)
    parser.add_argument("--teacher", required=True, help="folder of the trained labcoder")
    args = parser.parse_args()
    run = Run.of(args)
    dtype = torch.bfloat16 if run.device.type == "cuda" else torch.float32
    teacher = LlamaForCausalLM.from_pretrained(args.teacher, dtype=dtype).to(run.device)
    teacher.eval().requires_grad_(False)
    student = llama(**SHAPE).to(run.device)

    def divergence(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids=inputs, use_cache=False).logits.float().log_softmax(-1)
        given = run.logits(student, inputs).log_softmax(-1)
        return (wanted.exp() * (wanted - given)).sum(-1).mean()

    run.fit(student, divergence)


if __name__ == "__main__":
    main()
