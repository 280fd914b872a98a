# New lists, no loop with side effects.
def release_row(table, counts, free):
    after = [count - (block in table) for block, count in enumerate(counts)]
    return after, free + [block for block in table if after[block] == 0]
