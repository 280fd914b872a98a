# The larger of two by sorting, per request and inverted.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    work_ms = sorted([floor_units, batch * units_per_request])[-1] * ms_per_unit
    return 1000 / ((fixed_ms + work_ms) / batch)
