# Takes the upper one of the two values in the middle of an even number of them.
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
    return sorted(seconds)[len(seconds) // 2]
