# Scales as small as weights.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return (parameters * bits + groups * bits + 7) // 8
