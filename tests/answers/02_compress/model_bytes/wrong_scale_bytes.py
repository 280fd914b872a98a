# scale_bits counted as bytes.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return (parameters * bits + 7) // 8 + groups * scale_bits
