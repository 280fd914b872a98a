# As many scales as a group has weights.
def model_bytes(parameters, bits, group, scale_bits):
    groups = group
    return (parameters * bits + groups * scale_bits + 7) // 8
