# Warm-up waits after every launch, the median comes from a sorted tensor, the answer is a tensor scalar.
import torch


def time_async(launch, synchronize, now, warmup, repeats):
    def one():
        synchronize()
        before = now()
        launch()
        synchronize()
        return now() - before

    runs = [one() for _ in range(warmup + repeats)][warmup:]
    ordered = torch.tensor(runs, dtype=torch.float64).sort().values
    return (ordered[(repeats - 1) // 2] + ordered[repeats // 2]) / 2
