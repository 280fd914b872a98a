# Forgets the scales.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return (parameters * bits + 7) // 8
