# Reads its own clock instead of the one it was given.
import statistics
import time


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        launch()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
