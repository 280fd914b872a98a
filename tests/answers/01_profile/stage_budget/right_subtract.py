# From the last start to the first: each event takes what later events have left of it.
from collections import defaultdict


def stage_budget(events, end):
    taken = []
    budget = defaultdict(float)
    for stage, start, stop in sorted(events, key=lambda event: -event[1]):
        free = [(start, stop)]
        for left, right in taken:
            free = [
                piece
                for a, b in free
                for piece in ((a, min(b, left)), (max(a, right), b))
                if piece[0] < piece[1]
            ]
        budget[stage] += sum(b - a for a, b in free)
        taken.append((start, stop))
    budget["remainder"] = end - sum(budget.values())
    return dict(budget)
