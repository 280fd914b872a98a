# Every request pays the fixed part.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return 1000 * batch / (batch * fixed_ms + max(floor_units, batch * units_per_request) * ms_per_unit)
