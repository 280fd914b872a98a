# numpy differences; TPOT as the mean gap; another order of keys.
import numpy as np


def latency_terms(sent, stamps):
    times = np.asarray(stamps, dtype=float) - sent
    gaps = np.diff(times)
    return {
        "e2e": float(times[-1]),
        "itl": tuple(gaps.tolist()),
        "ttft": float(times[0]),
        "tpot": float(gaps.mean()) if gaps.size else None,
    }
