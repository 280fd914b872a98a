# Two times, the longer one binds.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    return {
        "intensity": flops / nbytes,
        "ridge": peak_tflops * 1e12 / (bandwidth_gbs * 1e9),
        "floor_ms": 1e3 * max(compute, memory),
        "bound": "memory" if memory > compute else "compute",
    }
