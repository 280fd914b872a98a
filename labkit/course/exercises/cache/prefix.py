"""Exercise: the longest beginning of a prompt that is published already."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.course.exercise import Exercise, expect

Published = Mapping[int, tuple[int, list[int]]]


def prefix_lookup(
    tokens: Sequence[int], published: Published, fingerprint: Callable[[list[int]], int], block_size: int
) -> list[int]:
    """Blocks of the longest published beginning, one token left to compute (labkit's own answer)."""
    found: list[int] = []
    for end in range(block_size, len(tokens), block_size):
        beginning = list(tokens[:end])
        block, held = published.get(fingerprint(beginning), (0, []))
        if list(held) != beginning:
            break
        found.append(block)
    return found


@dataclass
class Case:
    """One look-up: a prompt, what is published, and what `fingerprint` was asked."""

    tokens: list[int]
    size: int
    published: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    asked: list[list[int]] = field(default_factory=list)
    salt: int = 0

    def fingerprint(self, tokens: Any) -> int:
        """The number of a beginning: the same for the same tokens."""
        self.asked.append([int(token) for token in tokens])
        return self._number(self.asked[-1])

    def _number(self, tokens: list[int]) -> int:
        value = self.salt
        for token in tokens:
            value = (value * 1_000_003 + token + 1) % (2**61 - 1)
        return value

    def publish(self, text: list[int], rng: random.Random, *, under: list[int] | None = None) -> int:
        """Publish the block at the end of `text`; `under`: as if its number were that of another beginning."""
        block = rng.choice(
            [b for b in range(1, 500) if b not in {held for held, _ in self.published.values()}]
        )
        self.published[self._number(text if under is None else under)] = (block, list(text))
        return block


def _case(rng: random.Random, blocks: int, rest: int) -> Case:
    """A prompt of `blocks` full blocks and `rest` tokens more, nothing published."""
    size = rng.choice([3, 4, 5])
    tokens = [rng.randrange(1000) for _ in range(blocks * size + rest)]
    return Case(tokens, size, salt=rng.randrange(1, 10**6))


def _check(fn: Callable, rng: random.Random) -> None:
    _nothing(fn, rng)
    _some(fn, rng)
    _whole(fn, rng)
    _hole(fn, rng)
    _collision(fn, rng)


def _ask(fn: Callable, case: Case) -> tuple[list[int], dict[str, Any]]:
    got = fn(list(case.tokens), dict(case.published), case.fingerprint, case.size)
    given = {"length": len(case.tokens), "size": case.size, "tokens": case.tokens}
    right = isinstance(got, list | tuple) and all(type(block) is int for block in got)
    expect(right, "form", got=got, **given)
    for asked in case.asked:
        block_only = asked != case.tokens[: len(asked)] and len(asked) == case.size
        expect(not block_only, "block_only", asked=asked, **given)
        expect(len(asked) % case.size == 0, "not_full", asked=len(asked), **given)
        expect(asked == case.tokens[: len(asked)], "no_beginning", asked=asked, **given)
    return list(got), given


def _nothing(fn: Callable, rng: random.Random) -> None:
    case = _case(rng, blocks=3, rest=1)
    got, given = _ask(fn, case)
    expect(got == [], "nothing", got=got, **given)


def _some(fn: Callable, rng: random.Random) -> None:
    """Two of four blocks are published, and the prompt ends inside a block."""
    case = _case(rng, blocks=4, rest=2)
    want = [case.publish(case.tokens[: n * case.size], rng) for n in (1, 2)]
    got, given = _ask(fn, case)
    expect(got != want[::-1], "reversed", got=got, want=want, **given)
    expect(got != want[:1], "stops_early", got=got, want=want, **given)
    expect(got == want, "blocks", got=got, want=want, **given)


def _whole(fn: Callable, rng: random.Random) -> None:
    """Everything is published: with no token over, the last block must be computed again; with one, not."""
    for rest in (0, 1):
        case = _case(rng, blocks=3, rest=rest)
        every = [case.publish(case.tokens[: n * case.size], rng) for n in (1, 2, 3)]
        want = every if rest else every[:2]
        got, given = _ask(fn, case)
        expect(rest == 1 or got != every, "nothing_left", got=got, want=want, **given)
        expect(rest == 0 or got != every[:2], "too_careful", got=got, want=want, **given)
        expect(got == want, "blocks", got=got, want=want, **given)


def _hole(fn: Callable, rng: random.Random) -> None:
    """The second block was evicted, the third is still there."""
    case = _case(rng, blocks=4, rest=1)
    first = case.publish(case.tokens[: case.size], rng)
    third = case.publish(case.tokens[: 3 * case.size], rng)
    got, given = _ask(fn, case)
    expect(got != [first, third], "hole", got=got, want=[first], **given)
    expect(got == [first], "blocks", got=got, want=[first], **given)


def _collision(fn: Callable, rng: random.Random) -> None:
    """Another text has the same number. Once it differs in its last block, once in its first only."""
    for place in ("in its last block", "before its last block"):
        case = _case(rng, blocks=3, rest=2)
        mine = case.tokens[: 2 * case.size]
        other = list(mine)
        other[-1 if place == "in its last block" else 0] += 1
        want = [case.publish(case.tokens[: case.size], rng)]
        stranger = case.publish(other, rng, under=mine)
        got, given = _ask(fn, case)
        expect(stranger not in got, "collision", got=got, want=want, other=other, place=place, **given)
        expect(got == want, "blocks", got=got, want=want, **given)


EXERCISES = [
    Exercise(
        name="prefix_lookup",
        notebook="04_cache",
        level="core",
        points=3,
        minutes=8,
        check=_check,
        reference=prefix_lookup,
    )
]
