# A scale for each weight.
def model_bytes(parameters, bits, group, scale_bits):
    groups = parameters
    return (parameters * bits + groups * scale_bits + 7) // 8
