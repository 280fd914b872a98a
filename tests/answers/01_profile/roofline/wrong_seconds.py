# Returns seconds where milliseconds are asked for.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    intensity = flops / nbytes
    ridge = peak_tflops * 1e12 / (bandwidth_gbs * 1e9)
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": max(compute, memory),
        "bound": "memory" if intensity < ridge else "compute",
    }
