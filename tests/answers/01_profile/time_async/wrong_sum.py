# Returns the sum of all repeats.
def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    synchronize()
    start = now()
    for _ in range(repeats):
        launch()
    synchronize()
    return now() - start
