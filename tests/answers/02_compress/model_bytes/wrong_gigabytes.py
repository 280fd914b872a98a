# Gigabytes.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return (parameters * bits + groups * scale_bits + 7) // 8 / 1e9
