# The article's figures, whatever is given.
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    return batch / ((15 + max(400, batch * 256) * 0.1) / 1000)
