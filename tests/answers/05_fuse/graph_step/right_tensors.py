# Filled into tensors of zeros.
import torch


def graph_step(ids, slots, visible, tables, numbers, buckets, width):
    for bucket in sorted(buckets):
        if len(ids) <= bucket:
            break
    else:
        return None
    rows = len(ids)
    inputs = {name: torch.zeros(bucket, dtype=torch.long) for name in ("ids", "slots")}
    inputs["visible"] = torch.ones(bucket, dtype=torch.long)
    inputs["tables"] = torch.zeros(bucket, width, dtype=torch.long)
    for name, values in (("ids", ids), ("slots", slots), ("visible", visible)):
        inputs[name][:rows] = torch.tensor(values)
    for row, table in enumerate(tables):
        inputs["tables"][row, : len(table)] = torch.tensor(table)
    key = (bucket,) + tuple(numbers[name] for name in sorted(numbers)) + tuple(sorted(numbers))
    return key, inputs
