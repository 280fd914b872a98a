# Twice as many.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return 2e3 * batch / (fixed_ms + max(floor_units, batch * units_per_request) * ms_per_unit)
