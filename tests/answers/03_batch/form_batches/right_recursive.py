# The first batch, and then the rest; tuples for lists.
import bisect


def form_batches(arrivals, window, max_batch):
    def rest(first):
        if first == len(arrivals):
            return ()
        closes = arrivals[first] + window
        stop = bisect.bisect_right(arrivals, closes)
        stop = min(stop, first + max_batch)
        start = arrivals[stop - 1] if stop - first == max_batch else closes
        return ((start, tuple(range(first, stop))), *rest(stop))

    return rest(0)
