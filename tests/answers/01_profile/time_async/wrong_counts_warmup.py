# Times the warm-up launches along with the others.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    seconds = []
    for _ in range(warmup + repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
