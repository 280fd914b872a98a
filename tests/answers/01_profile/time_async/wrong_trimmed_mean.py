# The mean of the middle third instead of the median.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    third = len(seconds) // 3
    return statistics.fmean(sorted(seconds)[third : len(seconds) - third])
