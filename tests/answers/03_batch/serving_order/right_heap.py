# A heap, with the place in the list to break ties.
import heapq


def serving_order(waiting, head_start):
    heap = [
        (arrival + priority * head_start, place, name) for place, (name, arrival, priority) in enumerate(waiting)
    ]
    heapq.heapify(heap)
    return [heapq.heappop(heap)[2] for _ in waiting]
