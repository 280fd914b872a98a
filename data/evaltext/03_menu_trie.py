"""Autocomplete for the order screen: type two letters, see the likely dishes."""

from __future__ import annotations

import heapq
from typing import Iterable, Iterator, Optional


class _Node:
    __slots__ = ("children", "weight")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.weight: Optional[int] = None  # None: no dish ends here


class MenuTrie:
    """Prefix tree of dish names, each with the number of times it was ordered.

    Lookups ignore case, and results come back as the name was first typed in.
    """

    def __init__(self, dishes: Iterable[str] = ()) -> None:
        self._root = _Node()
        self._spelling: dict[str, str] = {}
        for dish in dishes:
            self.add(dish)

    def __contains__(self, dish: object) -> bool:
        return isinstance(dish, str) and dish.casefold() in self._spelling

    def __len__(self) -> int:
        return len(self._spelling)

    def add(self, dish: str, orders: int = 1) -> None:
        key = dish.strip().casefold()
        if not key:
            raise ValueError("a dish needs a name")
        node = self._root
        for letter in key:
            node = node.children.setdefault(letter, _Node())
        node.weight = (node.weight or 0) + orders
        self._spelling.setdefault(key, dish.strip())

    def remove(self, dish: str) -> None:
        """Take a dish off the menu and prune the branch that only it used."""
        key = dish.casefold()
        if key not in self._spelling:
            raise KeyError(dish)
        path = [self._root]
        for letter in key:
            path.append(path[-1].children[letter])
        path[-1].weight = None
        for depth in range(len(key), 0, -1):
            node = path[depth]
            if node.children or node.weight is not None:
                break
            del path[depth - 1].children[key[depth - 1]]
        del self._spelling[key]

    def _find(self, prefix: str) -> Optional[_Node]:
        node = self._root
        for letter in prefix:
            if letter not in node.children:
                return None
            node = node.children[letter]
        return node

    def _walk(self, node: _Node, prefix: str) -> Iterator[tuple[int, str]]:
        if node.weight is not None:
            yield node.weight, prefix
        for letter in sorted(node.children):
            yield from self._walk(node.children[letter], prefix + letter)

    def complete(self, prefix: str, limit: int = 3) -> list[str]:
        """The most ordered dishes that begin with `prefix`, best first."""
        prefix = prefix.casefold()
        start = self._find(prefix)
        if start is None:
            return []
        ranked = heapq.nsmallest(limit, self._walk(start, prefix), key=lambda pair: (-pair[0], pair[1]))
        return [self._spelling[key] for _, key in ranked]


def demo() -> list[list[str]]:
    trie = MenuTrie(["Ramen", "Ratatouille", "Ravioli", "Rice", "Rice pudding"])
    trie.add("ravioli", orders=7)
    trie.add("Ratatouille", orders=2)
    before = trie.complete("ra")
    trie.remove("Ravioli")
    return [before, trie.complete("RA"), trie.complete("x")]


if __name__ == "__main__":
    print(demo())
