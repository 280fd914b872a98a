# Never waits for the work: measures the launch alone.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        seconds.append(now() - start)
    return statistics.median(seconds)
