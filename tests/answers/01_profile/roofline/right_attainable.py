# From the roof's height at this intensity.
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    intensity = flops / nbytes
    ridge = 1000 * peak_tflops / bandwidth_gbs
    attainable = min(peak_tflops * 1e12, intensity * bandwidth_gbs * 1e9)
    bound = "compute" if intensity >= ridge else "memory"
    return dict(bound=bound, floor_ms=flops / attainable * 1000, ridge=ridge, intensity=intensity)
