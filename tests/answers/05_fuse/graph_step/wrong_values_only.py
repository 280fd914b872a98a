# The key has the numbers without their names.
def graph_step(ids, slots, visible, tables, numbers, buckets, width):
    fitting = [bucket for bucket in buckets if bucket >= len(ids)]
    if not fitting:
        return None
    bucket = min(fitting)
    idle = bucket - len(ids)
    inputs = {
        "ids": list(ids) + [0] * idle,
        "slots": list(slots) + [0] * idle,
        "visible": list(visible) + [1] * idle,
        "tables": [list(table) + [0] * (width - len(table)) for table in list(tables) + [[]] * idle],
    }
    return (bucket, *[numbers[name] for name in sorted(numbers)]), inputs
