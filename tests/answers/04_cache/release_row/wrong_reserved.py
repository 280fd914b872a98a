# Takes every block that nobody holds for free, the reserved one too.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 1
    return counts, [block for block, count in enumerate(counts) if count == 0]
