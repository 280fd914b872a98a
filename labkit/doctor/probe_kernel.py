"""The smallest Triton kernel that shows Triton working: y = a·x + y with a ragged last block."""

import torch
import triton
import triton.language as tl


@triton.jit
def axpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One block of out = a·x + y; the mask keeps the last block inside n."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    value = a * tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside)
    tl.store(out + index, value, mask=inside)


def check(device: str) -> None:
    """Run the kernel on random data and hold it against torch.

    Raises:
        ValueError: the kernel ran and computed something else.
    """
    n, block = 1000, 256  # not a multiple
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    out = torch.full((n,), float("nan"), device=device)
    axpy_kernel[(triton.cdiv(n, block),)](x, y, out, 2.5, n, BLOCK=block)
    if not torch.allclose(out, 2.5 * x + y, atol=1e-5):
        raise ValueError("a Triton kernel ran and gave wrong numbers")
