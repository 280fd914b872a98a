# Warms up with one launch, however many were asked for.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    launch()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
