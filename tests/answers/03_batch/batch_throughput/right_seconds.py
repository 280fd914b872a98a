# In seconds from the start.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    work = batch * units_per_request
    if work < floor_units:
        work = floor_units
    return batch / (fixed_ms * 1e-3 + work * ms_per_unit * 1e-3)
