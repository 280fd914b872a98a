# Reports the slowest repeat.
def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    worst = 0.0
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        worst = max(worst, now() - start)
    return worst
