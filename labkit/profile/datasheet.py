"""Ceilings of devices one may not have, from their makers' datasheets.

Rates are *dense* and for 16-bit inputs with 32-bit accumulation, which is how language models run. Vendors
often print the figure for 2:4 structured sparsity, twice as large; the note says where. A datasheet's peak
is never reached: measured ceilings are typically 85 to 95 % of the bandwidth and 65 to 85 % of the FLOP/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.errors import LabkitError
from labkit.profile.formulas import ridge


@dataclass(frozen=True)
class Ceilings:
    """The two limits of a device: bandwidth [B/s] and flops [FLOP/s] at `dtype`, and where they come from."""

    bandwidth: float
    flops: float
    name: str
    source: str
    dtype: str = "bfloat16"
    note: str = ""

    @property
    def ridge(self) -> float:
        """Peak FLOP/s ÷ bandwidth [FLOP/B]."""
        return ridge(self.flops, self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.name} at {self.dtype}: {self.bandwidth / 1e9:,.0f} GB/s, "
            f"{self.flops / 1e12:,.3g} TFLOP/s, ridge {self.ridge:,.3g} FLOP/B\n  {self.source}"
        )


def _sheet(name: str, gigabytes: float, teraflops: float, source: str, note: str = "") -> Ceilings:
    return Ceilings(gigabytes * 1e9, teraflops * 1e12, name, f"datasheet: {source}", "bfloat16", note)


_SPARSE = "the datasheet prints {} TFLOPS, which is with 2:4 sparsity; dense is half"

DATASHEET: dict[str, Ceilings] = {
    "H200-SXM": _sheet("H200-SXM", 4800, 989.4, "NVIDIA H200 Tensor Core GPU", _SPARSE.format("1,979")),
    "H100-SXM": _sheet("H100-SXM", 3350, 989.4, "NVIDIA H100 Tensor Core GPU", _SPARSE.format("1,979")),
    "H100-PCIe": _sheet("H100-PCIe", 2000, 756.5, "NVIDIA H100 Tensor Core GPU", _SPARSE.format("1,513")),
    "B200-SXM": _sheet("B200-SXM", 8000, 2250, "NVIDIA HGX B200", _SPARSE.format("4,500")),
    "A100-80GB-SXM": _sheet(
        "A100-80GB-SXM", 2039, 312, "NVIDIA A100 80GB", "the 624 TFLOPS beside it are with 2:4 sparsity"
    ),
    "A100-40GB": _sheet(
        "A100-40GB", 1555, 312, "NVIDIA A100 40GB", "the 624 TFLOPS beside it are with 2:4 sparsity"
    ),
    "A10": _sheet("A10", 600, 125, "NVIDIA A10", "the 250 TFLOPS beside it are with 2:4 sparsity"),
    "L4": _sheet("L4", 300, 121, "NVIDIA L4", _SPARSE.format("242")),
    "L40S": _sheet("L40S", 864, 362, "NVIDIA L40S", "the 733 TFLOPS beside it are with 2:4 sparsity"),
    "T4": _sheet("T4", 320, 65, "NVIDIA T4", "float16 only: the chip has no bfloat16 units"),
    "RTX-4090": _sheet(
        "RTX-4090",
        1008,
        165.2,
        "NVIDIA Ada GPU Architecture whitepaper",
        "with 32-bit accumulation; 330.3 is with 16-bit accumulation or 2:4 sparsity",
    ),
    "RTX-3090": _sheet(
        "RTX-3090",
        936,
        71,
        "NVIDIA Ampere GA102 whitepaper",
        "with 32-bit accumulation; 142 is with 16-bit or sparsity",
    ),
    "laptop-CPU": Ceilings(
        76.8e9,
        0.768e12,
        "laptop-CPU",
        "arithmetic: two channels of DDR5-4800; 8 cores · 3 GHz · 2 AVX2 FMA units · 8 lanes · 2",
        "float32",
        "a typical eight-core laptop, not one product",
    ),
}

# how a driver names them; word boundaries keep GH200 from being an H200 and an A10G from being an A10
_DRIVER_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bH200$", "H200-SXM"),
    (r"\bH100 80GB HBM3$", "H100-SXM"),
    (r"\bH100 PCIe$", "H100-PCIe"),
    (r"\bB200$", "B200-SXM"),
    (r"\bA100-SXM4-80GB$", "A100-80GB-SXM"),
    (r"\bA100-\w+-40GB$", "A100-40GB"),
    (r"\bA10$", "A10"),
    (r"\bL4$", "L4"),
    (r"\bL40S$", "L40S"),
    (r"\bT4$", "T4"),
    (r"\bRTX 4090$", "RTX-4090"),
    (r"\bRTX 3090$", "RTX-3090"),
)


def datasheet_for(device_name: str) -> Ceilings | None:
    """The datasheet entry of a device by the name its driver gives ("NVIDIA H200"), or None."""
    for pattern, key in _DRIVER_NAMES:
        if re.search(pattern, device_name):
            return DATASHEET[key]
    return None


def named(name: str) -> Ceilings:
    """DATASHEET[name], with an error that lists the names.

    Raises:
        LabkitError: an unknown name.
    """
    if name not in DATASHEET:
        raise LabkitError(f"No datasheet is kept for {name!r}.", f"Known: {', '.join(DATASHEET)}.")
    return DATASHEET[name]
