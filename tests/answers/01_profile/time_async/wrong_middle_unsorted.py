# Takes the middle of the list without sorting it.
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
    return seconds[len(seconds) // 2]
