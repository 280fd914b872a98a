# math.ceil and divmod.
import math


def model_bytes(parameters, bits, group, scale_bits):
    whole, rest = divmod(parameters, group)
    scales = whole + (rest > 0)
    return math.ceil((parameters * bits + scales * scale_bits) / 8)
