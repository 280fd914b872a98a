# Warms up as told, and throws the first measurement away as well.
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
    return statistics.median(seconds[1:] or seconds)
