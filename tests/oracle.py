"""A runner whose "model" notices every mistake: the next token is a hash of all that a row can see.

Its KV holds each token with its position. A wrong block, a stale block, a wrong position, order or length
changes the hash, and every token after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from labkit.batch.request import Request
from labkit.batch.row import UNKNOWN, Step
from labkit.batch.runner import Drawn
from labkit.cache.tables import BlockTables

VOCAB = 50
EOS = 7
POISON = -99


class Mistake(BaseException):
    """Something a model could not notice; not an Exception, because the engine survives those."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Mistake(what)


class ModelError(RuntimeError):
    """What a failing model raises."""


def next_token(visible: list[int], seed: int, index: int) -> int:
    """The oracle's token after `visible`; the seed enters as a draw's would."""
    text = f"{visible}|{seed}|{index}".encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "big") % VOCAB


def alone(request: Request, prompt: tuple[int, ...], seed: int) -> list[int]:
    """What a request says with nobody else around."""
    tokens, output = list(prompt), []
    while len(output) < request.max_tokens:
        token = next_token(tokens, seed, len(output))
        tokens.append(token)
        output.append(token)
        if token in request.stop_ids or (token == EOS and not request.ignore_eos):
            break
    return output


@dataclass
class OracleFlight:
    """Tokens that are decided, but not told before `wait`."""

    step: Step
    drawn: list[Drawn]
    fails: BaseException | None = None

    def wait(self) -> list[Drawn]:
        if self.fails is not None:
            raise self.fails
        return self.drawn


@dataclass
class OracleRunner:
    """Runs steps on the oracle.

    `fail_launch` and `fail_wait` make the next step fail at that moment, `stop_launch` and `stop_wait` interrupt it
    there as Ctrl-C does; `bad` makes its first row's logits NaN.
    """

    tables: BlockTables
    overlaps: bool = False
    kv: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    fail_launch: bool = False
    fail_wait: bool = False
    stop_launch: bool = False
    stop_wait: bool = False
    bad: bool = False
    steps: int = 0

    def run_copies(self) -> None:
        size = self.tables.block_size
        sources, targets = self.tables.take_copies()
        found = {s * size + i: self.kv.get(s * size + i) for s in sources for i in range(size)}
        for source, target in zip(sources, targets, strict=True):
            for i in range(size):
                self.kv[target * size + i] = found[source * size + i]

    def launch(self, step: Step) -> OracleFlight:
        size = self.tables.block_size
        self.run_copies()
        if self.fail_launch:
            self.fail_launch = False
            raise ModelError("at once")
        if self.stop_launch:
            self.stop_launch = False
            raise KeyboardInterrupt
        self.steps += 1
        ones = [work.tokens == 1 for work in step.works]
        must(ones == sorted(ones, reverse=True), "decodes come first")
        inputs = []
        for work in step.works:
            ids = [self.last[work.row.slot] if token == UNKNOWN else token for token in work.ids()]
            must(len(ids) == work.tokens, "a step promises other tokens than it gives")
            inputs.append(ids)
            slots = self.tables.slots(work.row.number, work.start, work.stop)
            for slot, token, position in zip(slots, ids, range(work.start, work.stop), strict=True):
                block = slot // size
                must(block != 0, "the reserved block is nobody's")
                must(self.tables.pool.references(block) == 1, "a shared block is written")
                must(not self.tables.pool.kept(block), "a published block is written")
                self.kv[slot] = (token, position)
        drawn = []
        for number, work in enumerate(step.works):
            tokens = []
            for i in range(work.wanted):
                end = work.stop - work.wanted + 1 + i
                slots = self.tables.slots(work.row.number, 0, end)
                seen = [self.kv.get(slot) or (POISON, POISON) for slot in slots]
                must([position for _, position in seen] == list(range(end)), "a wrong block is read")
                tokens.append(next_token([token for token, _ in seen], work.row.seed, work.first + i))
            if tokens:
                self.last[work.row.slot] = tokens[-1]
            drawn.append(Drawn(tokens, bad=self.bad and number == 0 and bool(tokens)))
        fails = ModelError("late") if self.fail_wait else KeyboardInterrupt() if self.stop_wait else None
        self.bad = self.fail_wait = self.stop_wait = False
        return OracleFlight(step, drawn, fails)

    def close(self) -> None:
        pass
