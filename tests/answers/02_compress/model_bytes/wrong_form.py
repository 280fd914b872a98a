# A text.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return f"{(parameters * bits + groups * scale_bits + 7) // 8} bytes"
