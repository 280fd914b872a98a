# Filled slice by slice.
import torch


def merge_qkv(q, k, v):
    sizes = [len(q), len(k), len(v)]
    weight = q.new_empty(sum(sizes), q.shape[1])
    for target, source in zip(weight.split(sizes), (q, k, v)):
        target.copy_(source)
    return weight, sizes
