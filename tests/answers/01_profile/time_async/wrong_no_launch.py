# Times an empty loop.
import statistics


def time_async(launch, synchronize, now, warmup, repeats):
    seconds = []
    for _ in range(repeats):
        start = now()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)
