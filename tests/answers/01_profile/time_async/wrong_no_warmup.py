# Ignores the warm-up: counts the slow first calls.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
