# All NaN.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    intensity = float("nan")
    ridge = float("nan")
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": float("nan"),
        "bound": "memory" if intensity < ridge else "compute",
    }
