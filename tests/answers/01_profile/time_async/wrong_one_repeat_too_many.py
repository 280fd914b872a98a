# Off by one: a measurement more than asked for.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats + 1):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
