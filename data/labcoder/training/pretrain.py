"""Train labcoder on the gathered corpus."""

import torch

from .loop import llama
from .run import Run, arguments

SHAPE = {"hidden": 512, "layers": 4, "heads": 8, "kv_heads": 2, "intermediate": 1152}


def main() -> None:
    """Command line of the pretraining step."""
    run = Run.of(arguments(__doc__).parse_args())
    model = llama(**SHAPE).to(run.device)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(run.logits(model, inputs).flatten(0, 1), targets.flatten())

    run.fit(model, loss)


if __name__ == "__main__":
    main()
