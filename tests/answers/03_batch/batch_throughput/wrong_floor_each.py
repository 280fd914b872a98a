# Every request pays the floor.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return 1000 * batch / (fixed_ms + batch * max(floor_units, units_per_request) * ms_per_unit)
