# Returns the table only.
def room_for_token(table, length, counts, free, block_size):
    return [*table, free[-1]] if free else None
