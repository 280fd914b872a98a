"""The arithmetic of inference cost, in plain numbers: FLOPs, bytes, intensity, floors, MBU and MFU.

A multiply and an add are two FLOPs. Bytes are what must cross the memory bus at least once; activations
that stay in cache or registers are left out, which is why the results are floors.

Sources: Pope et al. 2022, "Efficiently Scaling Transformer Inference" (FLOPs and bytes of prefill and
decode); Williams et al. 2009, "Roofline" (intensity, ridge, attainable rate); Chowdhery et al. 2022, "PaLM"
(MFU); Databricks 2023, "LLM Inference Performance Engineering" (MBU).
"""

from __future__ import annotations

from labkit.errors import LabkitError

BYTES: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "int4": 0.5,
}


def dtype_name(dtype: object) -> str:
    """ "bfloat16" from torch.bfloat16 or from itself."""
    return str(dtype).removeprefix("torch.")


def bytes_per(dtype: object) -> float:
    """Bytes of one element. A 4-bit weight is half a byte, its scales not counted."""
    name = dtype_name(dtype)
    if name not in BYTES:
        raise LabkitError(f"{name} has no known size.", f"Use one of {', '.join(BYTES)}.")
    return BYTES[name]


def kv_bytes(
    layers: int, kv_heads: int, head_dim: int, tokens: int, batch: int = 1, element: float = 2
) -> float:
    """KV cache [B]: 2 (K and V) · layers · KV heads · head dim · tokens · batch · bytes an element."""
    return 2 * layers * kv_heads * head_dim * tokens * batch * element


def attended_pairs(new: int, past: int = 0, window: int | None = None) -> int:
    """Query-key pairs when `new` tokens attend causally to `past` earlier ones and to themselves.

    Query i of `new` sees past + i keys, at most `window`. (A kernel that computes the full square and masks
    it does more work than that.)
    """
    if window is None or past + new <= window:
        return new * past + new * (new + 1) // 2
    growing = max(0, window - past)  # queries that still see everything before them
    return attended_pairs(growing, past) + (new - growing) * window


def attention_flops(heads: int, head_dim: int, pairs: int) -> int:
    """FLOPs of scores and of weighting the values: 4 · heads · head dim · pairs, for one layer."""
    return 4 * heads * head_dim * pairs


def matrix_flops(parameters: int, tokens: int) -> int:
    """FLOPs of multiplying `tokens` vectors with matrices of so many parameters: 2 · parameters · tokens."""
    return 2 * parameters * tokens


def intensity(flops: float, bytes_moved: float) -> float:
    """Arithmetic intensity [FLOP/B]: FLOPs ÷ bytes moved."""
    return flops / _positive(bytes_moved, "bytes moved")


def ridge(peak_flops: float, bandwidth: float) -> float:
    """The intensity [FLOP/B] above which compute limits and below which memory does: peak ÷ bandwidth."""
    return peak_flops / _positive(bandwidth, "bandwidth")


def attainable(at_intensity: float, peak_flops: float, bandwidth: float) -> float:
    """The roofline [FLOP/s]: min(peak, intensity · bandwidth)."""
    return min(peak_flops, at_intensity * bandwidth)


def floor_seconds(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """The least time [s]: max(FLOPs ÷ peak, bytes ÷ bandwidth), as if both overlapped perfectly."""
    return max(flops / _positive(peak_flops, "peak FLOP/s"), bytes_moved / _positive(bandwidth, "bandwidth"))


def mbu(weight_bytes: float, kv_bytes: float, step_seconds: float, bandwidth: float) -> float:
    """Model bandwidth utilisation: (weight bytes read + KV bytes read of all rows) ÷ step ÷ bandwidth."""
    return (
        (weight_bytes + kv_bytes) / _positive(step_seconds, "step time") / _positive(bandwidth, "bandwidth")
    )


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilisation: model FLOPs ÷ time ÷ peak. Counts what the model needs, not what ran."""
    return flops / _positive(seconds, "time") / _positive(peak_flops, "peak FLOP/s")


def _positive(value: float, what: str) -> float:
    if not value > 0:
        raise LabkitError(f"The {what} is {value}.", "Give a positive number.")
    return value
