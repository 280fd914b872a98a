"""Numbers on their way to the device: in one copy, from memory that is used again, into memory that stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

Numbers = Sequence[int] | np.ndarray


class Staging:
    """Sends lists of integers to a device in one copy that the host does not wait for.

    On a GPU two pinned host buffers take turns, so that the next step can be written while the last one's copy
    may still be under way; one device buffer receives them all. What `send` returned is therefore overwritten by
    the next `send`, in the order of the device's stream: work that was launched in between still reads the old
    numbers.

    Args:
        device: where the numbers go.
        words: integers that fit at first; the buffers grow when more come.
    """

    def __init__(self, device: torch.device | str, words: int = 4096) -> None:
        self.device = torch.device(device)
        self._hosts: list[torch.Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._turn = 0
        if self.device.type == "cuda":
            self._grow(words)

    def send(self, *lists: Numbers) -> tuple[torch.Tensor, ...]:
        """The lists as int64 tensors on the device, one after the other in one buffer."""
        arrays = [np.asarray(each, dtype=np.int64).ravel() for each in lists]
        sizes = [len(each) for each in arrays]
        total = sum(sizes)
        if self.device.type != "cuda":
            return torch.from_numpy(np.concatenate(arrays)).to(self.device).split(sizes)
        if total > self._there.numel():
            self._grow(2 * total)
        self._turn = 1 - self._turn
        host, copied = self._hosts[self._turn], self._copied[self._turn]
        copied.synchronize()  # of two sends ago: as good as always over
        np.concatenate(arrays, out=host.numpy()[:total])
        self._there[:total].copy_(host[:total], non_blocking=True)
        copied.record()
        return self._there[:total].split(sizes)

    @torch.inference_mode(False)  # else nobody outside that mode could write into the buffer later
    def _grow(self, words: int) -> None:
        for copied in self._copied:
            copied.synchronize()
        self._hosts = [torch.empty(words, dtype=torch.int64, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._there = torch.empty(words, dtype=torch.int64, device=self.device)
