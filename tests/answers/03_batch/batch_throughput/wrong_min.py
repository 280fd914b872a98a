# The smaller of floor and work.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return 1000 * batch / (fixed_ms + min(floor_units, batch * units_per_request) * ms_per_unit)
