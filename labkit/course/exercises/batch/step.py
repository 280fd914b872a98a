"""Exercise: one step of a continuous scheduler, with prompts in pieces and admission by free blocks."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import number

Running = tuple[str, int, int]  # name, prompt tokens, tokens computed so far
Waiting = tuple[str, int]  # name, prompt tokens


def schedule_step(
    running: Sequence[Running], waiting: Sequence[Waiting], budget: int, free_blocks: int, block_size: int
) -> list[tuple[str, int]]:
    """Who runs in this step, and how many tokens (labkit's own answer)."""
    step = [(name, 1) for name, prompt, done in running if done >= prompt]
    left = budget - len(step)
    for name, prompt, done in running:
        piece = min(prompt - done, left)
        if piece > 0:
            step.append((name, piece))
            left -= piece
    for name, prompt in waiting:
        blocks = -(-prompt // block_size)
        if left == 0 or blocks > free_blocks:
            break
        step.append((name, min(prompt, left)))
        left -= step[-1][1]
        free_blocks -= blocks
    return step


def replay_steps(
    choose: Callable[..., Sequence[tuple[str, int]]],
    requests: Sequence[tuple[int, int]],
    *,
    budget: int,
    blocks: int,
    block_size: int,
) -> list[dict[str, int]]:
    """Every step of a run in which `choose` schedules: name → tokens. Requests are (prompt, new tokens), all there.

    A request draws a token in each step after which its prompt is complete, and leaves with its last one.
    """
    prompts = {str(index): prompt for index, (prompt, _) in enumerate(requests)}
    news = {str(index): new for index, (_, new) in enumerate(requests)}
    done: dict[str, int] = {}
    waiting = list(prompts)
    steps: list[dict[str, int]] = []
    while (waiting or done) and len(steps) < 100_000:
        taken = sum(-(-prompts[name] // block_size) for name in done)
        queue = [(name, prompts[name]) for name in waiting]
        running = [(name, prompts[name], count) for name, count in done.items()]
        step = {
            str(name): int(count)
            for name, count in choose(running, queue, budget, blocks - taken, block_size)
        }
        if not step:
            break
        steps.append(step)
        for name, count in step.items():
            if name in waiting:
                waiting.remove(name)
            done[name] = done.get(name, 0) + count
            if done[name] >= prompts[name] + news[name] - 1:
                del done[name]
    return steps


def _check_step(fn: Callable, rng: random.Random) -> None:
    size = rng.choice([8, 16])
    names = [f"{letter}{rng.randint(1, 99)}" for letter in "abcdefgh"]
    a, b, c, d, e = names[:5]
    decoding = [(b, 40, 40), (d, 9, 30)]
    _judge(fn, decoding, [], 16, 10, size)
    _judge(
        fn, [(a, 60, 20), *decoding], [(c, 50)], 2 + rng.randint(3, 9), 99, size
    )  # decodes behind a prompt
    _judge(fn, [(a, 60, 20), *decoding], [(c, 50)], 3, 99, size)
    _judge(fn, [(a, 60, 60), (b, 50, 50)], [(c, 10)], 2, 99, size)  # nothing left for the one who waits
    _judge(fn, [(a, 30, 25), (b, 300, 17)], [(c, 20)], 40, 99, size)
    _judge(fn, [(a, 30, 25)], [(c, 20), (d, 200)], 60, 99, size)  # the last one gets what is left
    _judge(
        fn, [(a, 60, 20), (b, 50, 3), (d, 9, 30)], [], rng.randint(5, 30), 99, size
    )  # nothing for the second
    _judge(fn, [(a, 60, 20), (d, 9, 30)], [(c, 3 * size)], 90, 0, size)  # who runs has its blocks already
    blocks = rng.randint(3, 6)
    _judge(fn, decoding, [(c, (blocks + 2) * size), (e, 1)], 400, blocks, size)
    _judge(fn, decoding, [(c, blocks * size), (e, size)], 400, blocks, size)  # the blocks are all taken then
    _judge(fn, decoding, [(c, blocks * size + 1), (e, size)], 400, blocks, size)  # a token needs a block
    _judge(fn, decoding, [(c, (blocks + 2) * size)], 5, blocks, size)  # blocks for all, though a piece runs
    _judge(fn, decoding, [(c, blocks * size + 1)], 5, blocks, size)
    _judge(fn, decoding, [(c, 2 * size), (a, (blocks - 1) * size), (e, size)], 900, blocks, size)
    _judge(fn, decoding, [(c, blocks * size)], 3, blocks, size)
    _judge(fn, [], [], 32, 10, size)
    for _ in range(6):
        running = [_drawn(rng, name) for name in names[: rng.randint(0, 5)]]
        waiting = [(name, rng.randint(1, 90)) for name in names[5 : rng.randint(5, 8)]]
        _judge(fn, running, waiting, len(running) + rng.randint(1, 120), rng.randint(0, 14), size)


def _drawn(rng: random.Random, name: str) -> Running:
    prompt = rng.randint(2, 80)
    return name, prompt, rng.choice([rng.randint(1, prompt - 1), prompt, prompt + rng.randint(1, 40)])


def _judge(
    fn: Callable, running: list[Running], waiting: list[Waiting], budget: int, free: int, size: int
) -> None:
    got = fn(list(running), list(waiting), budget, free, size)
    given: dict[str, Any] = {"running": str(running), "waiting": str(waiting), "budget": budget, "free": free}
    given |= {"size": size, "got": got}
    step = _plain(got, given)
    want = dict(schedule_step(running, waiting, budget, free, size))
    if step == want:
        return
    given["want"] = str(list(want.items()))
    _judge_mistakes(step, want, (running, waiting, budget, free, size), given)
    prompts = {name: prompt for name, prompt, _ in running} | dict(waiting)
    done = {name: count for name, _, count in running}
    for name, count in step.items():
        expect(name in prompts, "unknown", name=name, **given)
        expect(count >= 1, "zero", name=name, count=count, **given)
    for name, prompt, count in running:
        if count >= prompt:
            expect(name in step, "decode_left_out", name=name, **given)
            expect(step[name] == 1, "decode_not_one", name=name, count=step[name], **given)
    for name, count in step.items():
        left = max(1, prompts[name] - done.get(name, 0))
        expect(count <= left, "too_long", name=name, count=count, left=left, **given)
    expect(sum(step.values()) <= budget, "over_budget", total=sum(step.values()), **given)
    _judge_admission(step, want, waiting, given)
    name = next(name for name in want if step.get(name) != want[name])  # nobody else can be in it now
    expect(
        False,
        "piece" if name in step else "left_out",
        name=name,
        count=step.get(name),
        right=want.get(name),
        **given,
    )


def _judge_mistakes(
    step: Mapping[str, int],
    want: Mapping[str, int],
    asked: tuple[list[Running], list[Waiting], int, int, int],
    given: dict[str, Any],
) -> None:
    """Rules misread, where the whole step is what such a reading gives."""
    running, waiting, budget, free, size = asked
    some = {name: count for name, count in step.items() if count}
    just = next((name for name, prompt, done in running if prompt == done), None)
    if just is not None:  # decoding taken to begin one token later: those rows get nothing
        late = [one for one in running if one[1] != one[2]]
        expect(
            some != dict(schedule_step(late, waiting, budget, free, size)), "just_done", name=just, **given
        )
    joined = [(name, min(prompt, step.get(name, 0))) for name, prompt in waiting]
    pieces = sum(-(-count // size) for _, count in joined)
    needed = sum(-(-prompt // size) for name, prompt in waiting if name in step)
    down = sum(prompt // size for name, prompt in waiting if name in step)
    cut = any(0 < count < prompt for (_, count), (_, prompt) in zip(joined, waiting, strict=True))
    if cut and pieces <= free < min(needed, down):
        expect(False, "blocks_of_piece", name=[name for name, count in joined if count][-1], **given)
    for count in (
        lambda one: one[1],
        lambda one: one[2],
        lambda one: max(one[1:]),
    ):  # of prompts, of what is computed
        held = sum(-(-count(one) // size) for one in running)
        less = dict(schedule_step(running, waiting, budget, free - held, size))
        expect(less == want or step != less, "running_blocks", held=held, **given)


def _judge_admission(
    step: Mapping[str, int], want: Mapping[str, int], waiting: list[Waiting], given: dict[str, Any]
) -> None:
    """Who joined against who may, by blocks and in order."""
    free, size = given["free"], given["size"]
    joined = [(name, -(-prompt // size), prompt // size) for name, prompt in waiting if name in step]
    needed = sum(blocks for _, blocks, _ in joined)
    if needed > free:
        last = joined[-1]
        key = "blocks_down" if sum(down for *_, down in joined) <= free else "no_blocks"
        key = "blocks_kept" if key == "no_blocks" and all(blocks <= free for _, blocks, _ in joined) else key
        expect(False, key, name=last[0], needed=needed, **given)
    order = [name for name, _ in waiting]
    for place, name in enumerate(order):
        if name in step and any(earlier not in step for earlier in order[:place]):
            first = next(earlier for earlier in order[:place] if earlier not in step)
            expect(False, "overtakes", name=name, first=first, **given)
    shut = next((name for name in order if name in want and name not in step), None)
    whole = shut is not None and want[shut] < dict(waiting)[shut]
    expect(not whole, "not_in_pieces", name=shut, prompt=dict(waiting).get(shut or ""), **given)


def _plain(got: Any, given: dict[str, Any]) -> dict[str, int]:
    """What was returned as name → tokens; pairs in any order."""
    expect(not isinstance(got, Mapping), "mapping", **given)
    expect(isinstance(got, list | tuple), "form", **given)
    step: dict[str, int] = {}
    for one in got:
        expect(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str), "form", **given)
        count = number(one[1])
        expect(count is not None and count == int(count), "form", **given)
        expect(one[0] not in step, "twice", name=one[0], **given)
        step[one[0]] = int(count or 0)
    return step


EXERCISES = [
    Exercise(
        name="schedule_step",
        notebook="03_batch",
        level="core",
        points=4,
        minutes=14,
        check=_check_step,
        reference=schedule_step,
        keeps_arguments=True,
    )
]
