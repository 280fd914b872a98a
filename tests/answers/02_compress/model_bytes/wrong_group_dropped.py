# The last group has no scale.
def model_bytes(parameters, bits, group, scale_bits):
    groups = parameters // group
    return (parameters * bits + groups * scale_bits + 7) // 8
