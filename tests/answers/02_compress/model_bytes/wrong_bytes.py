# Two scales a group.
def model_bytes(parameters, bits, group, scale_bits):
    groups = (parameters + group - 1) // group
    return (parameters * bits + 2 * groups * scale_bits + 7) // 8
