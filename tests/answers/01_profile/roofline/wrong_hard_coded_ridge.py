# Hard-coded: the ridge that articles give for an H100.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    intensity = flops / nbytes
    ridge = 650.0
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": 1e3 * max(compute, memory),
        "bound": "memory" if intensity < ridge else "compute",
    }
