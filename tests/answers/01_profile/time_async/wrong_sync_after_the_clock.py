# Waits, but only after the clock was read.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    synchronize()
    seconds = []
    for _ in range(repeats):
        start = now()
        launch()
        stop = now()
        synchronize()
        seconds.append(stop - start)
    return statistics.median(seconds)
