# NaN.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return float("nan") * (parameters * bits + groups * scale_bits + 7) // 8
