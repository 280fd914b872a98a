# Not a number.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return float("nan")
