# Takes TFLOP/s and GB/s for FLOP/s and B/s.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / peak_tflops
    memory = nbytes / bandwidth_gbs
    intensity = flops / nbytes
    ridge = peak_tflops * 1e12 / (bandwidth_gbs * 1e9)
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": max(compute, memory),
        "bound": "memory" if intensity < ridge else "compute",
    }
