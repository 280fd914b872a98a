# Returns a truth value instead of a name.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    intensity = flops / nbytes
    ridge = peak_tflops * 1e12 / (bandwidth_gbs * 1e9)
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": 1e3 * max(compute, memory),
        "bound": intensity < ridge,
    }
