# One scale in all.
def model_bytes(parameters, bits, group, scale_bits):
    groups = 1
    return (parameters * bits + groups * scale_bits + 7) // 8
