# Reports the luckiest repeat.
def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    best = float("inf")
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        best = min(best, now() - start)
    return best
