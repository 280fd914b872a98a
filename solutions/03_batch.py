# %% [markdown]
# # 03 · Many at once
#
# The service of notebook 01 answers one person. But people do not take turns: after lunch, everybody types at
# once. The ledger's first rung says what one request waits. It does not say what the *tenth in the queue*
# waits.
#
# And it hides a waste. A decode step reads all weights to make **one** token: the whole larder is carried to
# the stove for a single plate. Batching cooks several orders in one wok.
#
# **After this notebook you can**
#
# - say what a batch gains, where it stops gaining, and check the law that articles give for it,
# - count what padding costs, and what the slowest guest of a batch costs the others,
# - form batches with a window, and say who waits for whom,
# - write one step of a *continuous* scheduler, the kind that vLLM, SGLang and TensorRT-LLM run,
# - compute the largest batch that memory allows, and let VIPs go first without starving anybody,
# - try policies on a virtual clock before you bet a service on them.
#
# **You need** notebook 01 (TTFT, TPOT, why decoding waits for bytes). No GPU, no network. Every term is in
# [docs/glossary.md](../docs/glossary.md).
#
# **How long it takes.** Writing the core exercises about 35 minutes; with reading and measuring about an hour
# and three quarters. Exercises marked *extra* can wait.
#
# **Run cells one at a time** (Shift+Enter): *Run All* stops at the first exercise that is not done yet. Run
# this first cell; you need not read it.

# %% role="setup"
import math
import statistics
from dataclasses import replace

import torch

import labkit
from labkit import paths, quality, results, timing
from labkit.batch import peers, trace
from labkit.batch.bench import release
from labkit.batch.build import engine_for
from labkit.batch.explore import decode_curve, virtual_engine
from labkit.batch.policy import Continuous, dynamic, one_at_a_time, static
from labkit.batch.replay import replay
from labkit.batch.virtual import CostModel
from labkit.batch.workload import skewed, workload
from labkit.cache.paged import token_bytes
from labkit.course import Table, check, ledger, predict, progress, show, texts, widgets
from labkit.course.exercises.batch.step import replay_steps
from labkit.course.plots import batch as plots
from labkit.course.plots import batch_queue
from labkit.course.tables import batch as tables
from labkit.models.memory import free_bytes

words = texts.words("03_batch")
h200 = results.load("batch")

# %% [markdown]
# The ledger so far:

# %%
ledger.show()

# %% [markdown]
# The exercises of this notebook, with their minutes of writing:

# %%
progress.show("03_batch")

# %% [markdown]
# ## 1 · A queue at the pass
#
# Lunch is over. Two dozen requests arrive within a second, at random moments (a *Poisson process*), each with
# its own piece of code. Most want a short completion, one in four a long one: such **skewed** lengths are
# what real services see. Moments and lengths are written down in a **trace**, a small table without anybody's
# text, so that every policy of this notebook serves the same lunch (`trace.record` makes one of what your own
# service has served).

# %%
lm = labkit.load()
on_gpu = lm.device.type == "cuda"
text = lm.encode(quality.evaluation_text("fixed"))[0].tolist()
lunch = trace.read(paths.data() / "traces" / "lunch.csv", text)
wanted = [one.request.max_tokens for one in lunch]
print(f"{lm.name} on {lm.device}: {len(lunch)} requests in {timing.duration(lunch[-1].at)}")
print("tokens wanted:", *wanted)

# %% [markdown]
# The plain model behind a queue serves **one at a time**. First the restaurant is empty but for one guest:

# %%
SLOTS = 8  # rows at once, where a scheduler has a fixed number of them


def serve(policy, arrivals, rows=SLOTS):
    """Run requests on the real engine, each at its time; returns what they waited, and every step."""
    with engine_for(lm, policy, rows=rows, blocks=None if on_gpu else 1024, share=False) as engine:
        engine.run([replace(one.request, max_tokens=3) for one in arrivals[:2]])  # warm up
        before = engine.metrics.count
        run = replay(engine, arrivals)
    release(lm)  # a GPU gets its memory back for the next one
    return run, engine.metrics.steps[before:]


quiet, _ = serve(one_at_a_time(), lunch[:1])
guest = quiet.tickets[0].latency()
print(f"one guest alone: first token after {timing.duration(guest.ttft)}, then one every {timing.duration(guest.tpot)}")

# %% [markdown]
# And when others stand in line? The p95 of the lunch is what nearly all of its guests stay below. Write your
# guess in place of `None`.

# %%
predict("TTFT p95, one at a time", None, "s")

# %%
runs, steps = {}, {}
runs["one at a time"], steps["one at a time"] = serve(one_at_a_time(), lunch)
predict.compare("TTFT p95, one at a time", runs["one at a time"].ttft(95), "s")

# %%
widgets.show_figure(
    batch_queue.queue(runs["one at a time"], steps["one at a time"]), words["queue"]
)

# %% [markdown]
# A line is a guest. The model did nothing wrong, and yet most of the wait is grey: *queue*. As long as guests
# come faster than they are served, the line grows. A faster kernel mends that only where it makes serving
# faster than arriving. Serving several at a time is the other way.

# %% [markdown]
# ## 2 · One step for many
#
# A decode step waits for bytes: all weights are read, whoever asks. If eight rows share the step, the weights
# are read once for eight tokens. So is a batch free? Articles give a law for a batch of $b$ requests:
#
# $$
# T(b) = 15\,\text{ms} + \max(400,\; b \cdot 128 \cdot 2) \cdot 0.1\,\text{ms}
# \qquad\text{throughput}(b) = \frac{1000\,\text{ms/s} \cdot b}{T(b)}
# $$
#
# A fixed part of 15 ms. Then work, counted in *units* of 0.1 ms: a request has 128 tokens of 2 units, and
# however small the batch, the device does 400 units: that is the floor. (Where 15, 400 and 2 come from, the
# articles do not say.) They conclude: 18.2, 30.2, 34.1, 36.4, 37.7 requests/s at $b$ = 1, 2, 4, 8, 16.

# %% [markdown]
# ### Exercise: `batch_throughput` · core, 4 minutes
#
# Write the law for any numbers, so that the articles' figures can be checked. Four of their requests:
# 4 · 256 = 1024 units, above the floor; 15 + 102.4 = 117.4 ms; 4 in 117.4 ms are 34.1 a second.


# %% answer="batch_throughput"
def batch_throughput(batch, fixed_ms, floor_units, units_per_request, ms_per_unit):
    """Requests per second when batches run one after the other.

    batch:             requests in a batch
    fixed_ms:          what a batch costs whatever is in it [ms]
    floor_units:       the least work of a batch [units]
    units_per_request: work of one request [units]
    ms_per_unit:       time of a unit of work [ms]

    Returns requests per second.
    """
    ### BEGIN SOLUTION
    step_ms = fixed_ms + max(floor_units, batch * units_per_request) * ms_per_unit
    return batch / (step_ms / 1000)
    ### END SOLUTION


# %% check="batch_throughput"
check.batch_throughput(batch_throughput)

# %%
batch_throughput = check.use("batch_throughput", batch_throughput)

show(tables.law({b: batch_throughput(b, 15, 400, 256, 0.1) for b in tables.LAW}))

# %% [markdown]
# The arithmetic holds. Now look at what the law *says*: the floor covers 400 ÷ 256 = 1.6 requests. From two
# requests on the step grows as fast as the batch, and sixteen rows give little more than twice the throughput
# of one. Is that how a decode step behaves? (It makes one token a row, so compare ratios: tokens/s of a batch
# over tokens/s of one row.) Before you measure: what do 16 rows give here?

# %%
predict("16 rows over one", None, "×")

# %%
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256) if on_gpu else (1, 2, 4, 8, 16, 32)
curve, curve_steps = decode_curve(lm, text, SIZES)
gains = {b: b / curve[b] * curve[1] for b in SIZES}
predict.compare("16 rows over one", gains[16], "×")
show(
    Table(
        ["rows", *map(str, SIZES)],
        [
            ["a step", *(timing.duration(curve[b]) for b in SIZES)],
            ["tokens/s, × one row", *(f"{gains[b]:.2f}" for b in SIZES)],
        ],
    )
)

# %%
law = {b: batch_throughput(b, 15, 400, 256, 0.1) for b in SIZES}
widgets.show_figure(plots.batch_curve(curve, law), words["curve"])
most = {name: max(b for b in SIZES if of[b] <= 2 * of[1])
        for name, of in (("measured", curve), ("law", {b: b / law[b] for b in SIZES}))}  # fmt: skip
print(f"a step at most twice that of one row: batches up to {most['measured']}; by the law, up to {most['law']}")

# %% [markdown]
# On the left, the grey line is a batch that costs nothing, the dashed one the articles' law. Follow the
# measured line: where it runs beside the grey one, more rows make a step hardly longer. Where it falls behind,
# something other than the weights sets the pace. That is the *ridge* of notebook 01 again: each row adds
# arithmetic and its own cache to read, but no weight bytes. Where it lies is the machine's affair:
#
# - **A GPU** with a large model reads weights, or waits for Python to launch kernels, and both cost the same
#   for one row and for dozens. Rows can be nearly free up to hundreds.
# - **A CPU** may charge for the first doubling already: one row is a matrix–vector product, two rows are a
#   matrix–matrix product, which is other code. From there on, sharing pays again.
#
# The law's floor ends at 1.6 requests on every machine: it describes one that hardly has a ridge.
#
# On the right is the price. Every guest in the wok waits for the whole wok: where a step grows with its rows,
# so does the time between two tokens of *each*. Throughput against latency is the trade of this notebook.

# %% [markdown]
# ## 3 · A rectangle has corners
#
# The simplest way to run a batch is a rectangle: pad every row to the longest. Positions of padding are
# computed like all others, and thrown away.
#
# ### Exercise: `padding_share` · core, 2 minutes
#
# Four rows of 10, 20, 30 and 40 tokens make a rectangle of 4 × 40 = 160 positions, of which 60 hold nothing:
# 0.375.


# %% answer="padding_share"
def padding_share(lengths):
    """Share of the computed positions that are padding when rows are padded to the longest.

    lengths: tokens of each row, all at least 1, in any order

    Returns a share between 0 and 1.
    """
    ### BEGIN SOLUTION
    return 1 - sum(lengths) / (len(lengths) * max(lengths))
    ### END SOLUTION


# %% check="padding_share"
check.padding_share(padding_share)

# %% [markdown]
# The lunch, in batches of eight. A row is padded twice: its prompt to the longest prompt, and its answer to
# the longest answer, for a static batch ends with its last row.

# %%
padding_share = check.use("padding_share", padding_share)


def mean_share(lengths):
    """The mean padding share of batches of eight."""
    return statistics.mean(padding_share(lengths[at : at + SLOTS]) for at in range(0, len(lengths), SLOTS))


asked = [len(one.request.prompt) for one in lunch]
for name, lengths, when in (("prompts", asked, ""), ("answers", wanted, ", if anybody knew them before")):
    as_they_come, by_length = mean_share(lengths), mean_share(sorted(lengths))
    print(f"{name}: {as_they_come:.0%} padding as they come, {by_length:.0%} sorted by length{when}")

# %% [markdown]
# Sorting helps with prompts. With answers it stays a wish: **nobody knows how long an answer will be** before
# it has ended. So two wastes have to go:
#
# - *Padding inside a step*, paid once for each prompt. The remedy is **packing**: the tokens of all rows in
#   one long line, with a note of who is who. labkit's engine packs, and pads nothing.
# - *Slots that stand idle* until the batch's last row is done, paid again at every step. (A **slot** is a
#   row's place in the batch.) That is the larger waste, and the rest of this notebook is about it.

# %% [markdown]
# ## 4 · Who waits for whom
#
# When does a batch start? **Static**: when it is full. **Dynamic**: when it is full, *or* when its first
# guest has waited for a window. Articles advise windows of 50–200 ms (others 100–300 ms) and batches of 4–32.
#
# ### Exercise: `form_batches` · core, 11 minutes
#
# Suppose that the stove is always free. The first request that waits opens a batch; it closes `window`
# seconds later. Whoever arrives until then joins, the very last moment included. A batch starts at once when
# it is full, else when it closes: nobody can know that no more will come.
#
# For arrivals at 0.00, 0.05, 0.30 and 0.31 s, a window of 0.1 s and batches of two: request 0 and 1 start,
# full, at 0.05; 2 and 3 at 0.31. With batches of three they start when the windows close: at 0.10 and 0.40.


# %% answer="form_batches"
def form_batches(arrivals, window, max_batch):
    """Dynamic batching.

    arrivals:  when each request arrives [s], rising (equal moments are possible); may be empty
    window:    how long the first of a batch waits for company at most [s], 0 or more
    max_batch: requests in a full batch, 1 or more

    Returns a list of (start, members) in order: when the batch starts [s], and a list with the
    positions of its requests in `arrivals`.
    """
    ### BEGIN SOLUTION
    batches, first = [], 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        members = [index for index in range(first, len(arrivals)) if arrivals[index] <= closes][:max_batch]
        start = arrivals[members[-1]] if len(members) == max_batch else closes
        batches.append((start, members))
        first = members[-1] + 1
    return batches
    ### END SOLUTION


# %% check="form_batches"
check.form_batches(form_batches)

# %% [markdown]
# The first 21 guests of the lunch, with your function: two full batches of eight, and five who do not fill a
# third. How long does each wait for company?

# %%
form_batches = check.use("form_batches", form_batches)

moments = [one.at for one in lunch[:21]]
for window in (0.05, 0.2, math.inf):
    formed = form_batches(moments, window, SLOTS)
    waits = [start - moments[one] for start, members in formed for one in members]
    sizes = [len(members) for _, members in formed]
    longest = timing.duration(max(waits)) if max(waits) < math.inf else "for ever"
    print(f"window {window:4g} s: batches of {sizes}, the unluckiest guest waits {longest}")

# %% [markdown]
# Without a window the last batch never fills: its guests **starve**. That fault is real, and quiet: under
# load it never shows; it bites the last guests of the evening.
#
# But the stove is not always free. Both policies on the real engine, at two hours of the day: the lunch, and a
# **quiet hour** of nine guests, one every quarter of a second, who want eight tokens each. (When the last guest
# has come, labkit closes the door and starts what waits, so nobody starves here.)

# %%
runs["static"], steps["static"] = serve(static(SLOTS), lunch)
runs["dynamic"], steps["dynamic"] = serve(dynamic(SLOTS, 0.1), lunch)
few = [replace(one, at=0.25 * i, request=replace(one.request, max_tokens=8)) for i, one in enumerate(lunch[:9])]
calm = {f"{name}, quiet hour": serve(policy, few)[0]
        for name, policy in (("static", static(SLOTS)), ("dynamic", dynamic(SLOTS, 0.1)))}  # fmt: skip
show(tables.schedulers({**runs, **calm}))

# %% [markdown]
# **At lunch** the batches fill by themselves (24 guests are three times eight), so a window can only do harm: it
# sends a smaller batch off early, and whoever comes a moment later waits until *that* has ended. If your table
# has dynamic behind static at lunch, this is why. **In the quiet hour** static lets the first guest wait for the
# eighth, and the window is what saves them. Which of the two hours an article measured, it rarely says.

# %% [markdown]
# ## 5 · Nobody waits for the slowest
#
# A batch in a kitchen ends when its slowest dish is done. But a decode step has no memory of the batch: every
# step, the rows could be others. **Continuous batching** (Orca, 2022) decides anew for *each step*: who has
# ended leaves, who waits takes the place. Three rules make it fair:
#
# 1. **Rows that decode come first**, one token each: somebody is watching that text appear.
# 2. What is left of the step's **token budget** goes to prompts, in order and *in pieces*, so that a long
#    prompt does not hold up everybody's next token (chunked prefill, Sarathi 2024).
# 3. Who waits joins, in order, when **memory** has room for its *whole* prompt, even if only a piece of it
#    runs now: the rest will follow. Nobody overtakes.
#
# ### Exercise: `schedule_step` · core, 14 minutes
#
# One such step. With `running = [("a", 60, 20), ("b", 40, 45)]`, `waiting = [("c", 50)]`, a budget of 64
# tokens, 10 free blocks of 16:
#
# - b has computed 45 tokens: the 40 of its prompt and 5 of its answer. It decodes: 1 token.
# - a has 40 tokens of its prompt left, and the budget allows all of them.
# - c's 50 tokens need 4 blocks (they are free), and 23 tokens of the budget are left: it joins with 23.
#
# So `[("b", 1), ("a", 40), ("c", 23)]`.


# %% answer="schedule_step"
def schedule_step(running, waiting, budget, free_blocks, block_size):
    """One step of continuous batching.

    running:     list of (name, prompt, done), in order: tokens of the prompt, and tokens
                 computed so far, of the prompt and then of the answer. With done >= prompt
                 the row decodes: one token a step. Running rows have their blocks already.
    waiting:     list of (name, prompt), in order
    budget:      tokens in the step at most; never less than the rows that decode
    free_blocks: memory blocks that nobody holds
    block_size:  tokens in a block

    Returns a list of (name, tokens), in any order; who runs nothing is not in it.
    """
    ### BEGIN SOLUTION
    step = [(name, 1) for name, prompt, done in running if done >= prompt]
    left = budget - len(step)
    for name, prompt, done in running:
        piece = min(prompt - done, left)
        if piece > 0:
            step.append((name, piece))
            left -= piece
    for name, prompt in waiting:
        blocks = -(-prompt // block_size)  # rounded up: a block that is begun is a block
        if left == 0 or blocks > free_blocks:
            break  # and nobody overtakes
        step.append((name, min(prompt, left)))
        left -= step[-1][1]
        free_blocks -= blocks
    return step
    ### END SOLUTION


# %% check="schedule_step"
check.schedule_step(schedule_step)

# %% [markdown]
# Your function schedules the lunch, all requests there at once, 64 tokens a step; and so does labkit's
# scheduler, the one that the engine runs. Do they choose the same?

# %%
schedule_step = check.use("schedule_step", schedule_step)

sizes = [(len(one.request.prompt), one.request.max_tokens) for one in lunch]
yours = replay_steps(schedule_step, sizes, budget=64, blocks=4096, block_size=16)
with virtual_engine(CostModel(step=0.01), Continuous(), step_tokens=64, share=False) as engine:
    engine.run([one.request for one in lunch])
    theirs = [{str(name): tokens for name, _, tokens in step.rows} for step in engine.metrics.steps]
same = sum(here == there for here, there in zip(yours, theirs, strict=False))
print(f"{len(yours)} steps by your function, {len(theirs)} by labkit's scheduler, {same} of them the same")
for number in (0, 1, len(yours) // 3):
    print(f"step {number}:", yours[number])

# %% [markdown]
# Now live. The same eight slots as the static batches had, so that only the scheduling differs. How many
# times the tokens/s of static batching will it give? (Two lunches of each, in turn, for one alone may meet a
# busy machine.)

# %%
predict("continuous over static", None, "×")

# %%
runs["continuous"], steps["continuous"] = serve(Continuous(SLOTS), lunch)
lunches = {"static": [runs["static"]], "continuous": [runs["continuous"]]}
for name, policy in (("static", static(SLOTS)), ("continuous", Continuous(SLOTS))):
    lunches[name].append(serve(policy, lunch)[0])
gain = sum(run.seconds for run in lunches["static"]) / sum(run.seconds for run in lunches["continuous"])
predict.compare("continuous over static", gain, "×")

busy = {name: statistics.mean(len(step.rows) for step in steps[name]) / SLOTS for name in lunches}
for name, served in lunches.items():
    print(f"{name}: {len(steps[name])} steps, {busy[name]:.0%} of the slots busy in a mean step; "
          f"lunches of {', '.join(timing.duration(run.seconds) for run in served)}")  # fmt: skip

# %%
three = {name: steps[name] for name in ("static", "dynamic", "continuous")}
came = {name: [ticket.arrival for ticket in runs[name].tickets] for name in three}
widgets.show_figure(plots.gantt(three, came), words["gantt"])

# %% [markdown]
# Numbers are guests. White is waste: a slot that somebody could have had. In the upper two, short requests
# leave, and their slots stay empty until the longest has ended. Below, the next guest sits down at once; what
# is white at the end is the lunch running out of guests. The steps above count the same: fewer of them, and
# fuller ones.
#
# And why eight slots? A static batch needs a fixed size, for it cannot grow once it has begun. A continuous
# one takes whoever is there while **memory** lasts (section 7: how many that is). This lunch fits whole:

# %%
runs["continuous, all"], steps["continuous, all"] = serve(Continuous(), lunch, rows=len(lunch))
show(tables.schedulers(runs))
print(f"most rows in one step: {max(len(step.rows) for step in steps['continuous, all'])} of {len(lunch)} guests")

# %% [markdown]
# ## 6 · A kitchen on paper
#
# Which window? Which size? At what load? Measuring each choice takes a lunch. But the scheduler does not care
# whether a step is real: give it a clock that jumps, and a formula for how long a step takes,
#
# $$
# \hat T = c_0 + c_1 \cdot \text{tokens} + c_2 \cdot \text{decoding rows}
# + c_3 \cdot \text{context read} + c_4 \cdot \text{query-key pairs}
# $$
#
# and a lunch is over in a tenth of a second. Engine, scheduler and blocks are the real ones; only the model is
# missing. The costs $c$ are fitted to the steps of section 2, its prompts and its decoding: the $c$ that miss
# them by least in all (*least squares*), none negative.

# %%
costs = CostModel.fit(curve_steps)
show(tables.costs(costs))

# %% [markdown]
# Compare $c_0$ with the step of one row: how much of it is there whatever the batch? A zero further down does
# not mean that something is free. Rows and tokens grow together in a decode step, so the fit may give one the
# other's share.
#
# A model is worth what its predictions are worth. The fit has seen none of these four lunches:

# %%
policies = {
    "one at a time": one_at_a_time(),
    "static": static(SLOTS),
    "dynamic": dynamic(SLOTS, 0.1),
    "continuous": Continuous(SLOTS),
}
told = {name: replay(virtual_engine(costs, one, rows=SLOTS), lunch) for name, one in policies.items()}
show(tables.prediction(told, {name: runs[name] for name in policies}))
ratios = {name: told[name].seconds / runs[name].seconds for name in policies}
print(f"predicted ÷ measured: {min(ratios.values()):.2f} to {max(ratios.values()):.2f}")
for name, of in (("predicted", told), ("measured", runs)):
    print(f"{name}, fastest first:", ", ".join(sorted(policies, key=lambda one: of[one].seconds)))

# %% [markdown]
# What is missing is the engine's own Python between steps, and whatever else this machine was doing while you
# measured. Two policies that nearly tie, such as static and dynamic here, may change places. A large difference
# should not: that is good enough to choose a policy by, and not good enough to promise milliseconds.
#
# Now more guests, and an afternoon instead of a rush. How many could continuous batching serve at most?

# %%
SIZES_OF = {"prompts": (16, 96), "outputs": skewed((6, 14), (40, 64), 0.25)}  # as in the lunch's trace
at_once = workload(text, 400, **SIZES_OF, seed=4)


def most_served(policy):
    """Requests per second when a crowd is there from the start, on the virtual clock."""
    return len(at_once) / replay(virtual_engine(costs, policy), at_once).seconds


capacity = most_served(Continuous())
rate = (len(lunch) - 1) / (lunch[-1].at - lunch[0].at)
print(f"capacity {capacity:.0f} requests/s; the lunch came at {rate:.0f}/s, which is {rate / capacity:.0%} of it")


def guests(share, count=120):
    """So many guests, at a share of the capacity."""
    return workload(text, count, **SIZES_OF, rate=share * capacity, seed=4)


# %% [markdown]
# An afternoon of 120 guests at 60 % of that, and every window with every size that articles advise. Move the
# sliders: what brings the solid line close to the dashed one?

# %%

WINDOWS, COMPANY = (0, 50, 100, 200, 300), (4, 8, 16, 32)  # milliseconds; requests
afternoon = guests(0.6)
reference = replay(virtual_engine(costs, Continuous()), afternoon)
grid = {
    (window, size): replay(virtual_engine(costs, dynamic(size, window / 1000)), afternoon)
    for window in WINDOWS
    for size in COMPANY
}


def draw(window, size):
    """The picture at one position of the sliders."""
    run = grid[window, size]
    title = words["policy_title"].format(
        window=window, size=size, p95=timing.duration(run.ttft(95)), rate=f"{run.tokens_per_second:,.0f}"
    )
    first = [ticket.first.stamps[0] - ticket.arrival for ticket in run.tickets]
    best = [ticket.first.stamps[0] - ticket.arrival for ticket in reference.tickets]
    return plots.waits(first, best, title=title, marks={"200 ms": 0.2, "1 s": 1.0})


widgets.explore(draw, words["explore"], window=WINDOWS, size=COMPANY)

# %%
rows = [
    [f"{size} requests", *(timing.duration(grid[window, size].ttft(95)) for window in WINDOWS)]
    for size in COMPANY
]
show(Table(["p95 of TTFT", *(f"{window} ms" for window in WINDOWS)], rows))
best_window, best_size = min(grid, key=lambda one: grid[one].ttft(95))
lowest = grid[best_window, best_size].ttft(95)
near = [one for one in grid if grid[one].ttft(95) <= 1.15 * lowest]
sizes_near = sorted({size for _, size in near})
print(f"best: {timing.duration(lowest)}; {len(near)} of {len(grid)} settings come within 15 % of it, "
      f"with sizes {sizes_near} and windows {sorted({window for window, _ in near})} ms\n"
      f"continuous, with nothing to tune: {timing.duration(reference.ttft(95))}")  # fmt: skip

# %% [markdown]
# Read down a column first: a batch that is too small cannot keep up, and its queue grows. Then along a row of
# the larger sizes: the window changes little, and differences of a few per cent are chance, not a recipe.
# While one batch cooks, the next fills up by itself. (Two sizes alike? Then hardly ever more guests wait than
# the smaller one takes.) What no setting removes is the wait for a running batch to *end*.
#
# The same over the load, from a nearly empty room to twice the capacity. Which policy keeps p95 below the
# second after which people leave, and up to how many guests?

# %%
policies["continuous"] = Continuous()  # as many as memory holds
shares = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0)
policies["static"], policies["dynamic"] = static(16), dynamic(16, 0.1)
curves = {
    name: [
        (share * capacity, replay(virtual_engine(costs, policy), guests(share)).ttft(95))
        for share in shares
    ]
    for name, policy in policies.items()
}
widgets.show_figure(plots.load_curve(curves, limit=1.0), words["load"])
for name, points in curves.items():
    kept = [rate for rate, seconds in points if seconds <= 1.0]
    start = "" if kept[:1] == [points[0][0]] else f"from {kept[0]:.2g} " if kept else ""
    print(f"{name:14} below 1 s", f"{start}up to {kept[-1]:.2g} requests/s" if kept else "at none of these loads")

# %% [markdown]
# One at a time is lost first: its line climbs to the length of the whole queue. Static batching is bad at
# *both* ends: with few guests they wait for the batch to fill. A window mends that end, and only that one.
# Continuous batching stays flat until the guests come faster than the capacity; beyond it no scheduler helps,
# and its line starts to climb as well.

# %% [markdown]
# ## 7 · The wok is as large as the fridge
#
# "As many as memory holds": how many is that? Beside the weights, each row keeps the keys and values of its
# tokens (the *KV cache*; notebook 04 is about it), in blocks of a fixed number of tokens.
#
# ### Exercise: `largest_batch` · core, 4 minutes
#
# Weights and cache together may use a `share` of the whole memory; the rest is for activations, the values
# that a step computes on its way. So take the share first and the weights off it; what is left goes to the
# rows, in whole blocks. 100 GB, a share of 0.9, weights of 60 GB: 30 GB for the cache.


# %% answer="largest_batch"
def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    """How many rows of full context fit.

    memory:       of the device [bytes]
    share:        of the memory that weights and cache together may use, 0 to 1
    weights:      [bytes]
    kv_per_token: keys and values of one token, all layers [bytes]
    context:      tokens that a row may reach
    block_size:   tokens in a block; a row takes whole blocks

    Returns a whole number, 0 if not even one row fits.
    """
    ### BEGIN SOLUTION
    blocks = -(-context // block_size)
    free = memory * share - weights
    return max(0, math.floor(free / (blocks * block_size * kv_per_token)))
    ### END SOLUTION


# %% check="largest_batch"
check.largest_batch(largest_batch)

# %%
largest_batch = check.use("largest_batch", largest_batch)

contexts = (512, 2048, 8192)
machines = [
    (f"{lm.name}, this machine", free_bytes(lm.device) + lm.weight_bytes, lm.weight_bytes, token_bytes(lm))
]
seven_kv = 2 * 32 * 32 * 128 * 2  # K and V · layers · heads · head size · 2 bytes
machines += [(f"7B in 16 bits, {gb} GB", gb * 1e9, 2 * 6.74e9, seven_kv) for gb in (16, 24, 80, 141)]
rows = [
    [name, *(f"{largest_batch(memory, 0.9, weights, kv, context, 16):,}" for context in contexts)]
    for name, memory, weights, kv in machines
]
show(Table(["rows of", *(f"{context:,} tokens" for context in contexts)], rows))

# %% [markdown]
# A fixed batch of 32 that ran for months on short prompts **runs out of memory** on the day when somebody
# pastes a whole file. The number that is safe for the longest context is a waste for all others. So the limit
# should be memory itself: admit while blocks are free, and if running rows outgrow the pool, let the last one
# give its blocks back and start over (*preemption*). On the virtual clock, 120 guests who come as fast as the
# capacity, with ever fewer blocks; at first as many as 32 guests hold at their full length:

# %%
crowd = guests(1.0)
tokens = [len(one.request.prompt) + one.request.max_tokens for one in crowd]
held = [-(-count // 16) for count in tokens]  # blocks of each, at its end
need = sum(held[:32])  # the virtual engine runs 32 rows at most
for blocks in (need, need // 4, need // 8, max(held) + 1):
    with virtual_engine(costs, Continuous(), blocks=blocks, share=False) as engine:
        run = replay(engine, crowd)
        print(f"{blocks:4} blocks: {run.tokens_per_second:6,.0f} tokens/s, p95 {timing.duration(run.ttft(95))}, "
              f"{engine.scheduler.preemptions} preemptions, "
              f"{sum(ticket.done for ticket in run.tickets)} of {len(run.tickets)} served")  # fmt: skip

# %% [markdown]
# Everybody is served, only later: memory that is short costs throughput, not correctness.

# %% [markdown]
# ## 8 · VIPs first, and nobody starves
#
# Some customers pay to go first. Serve them strictly first, and as long as they keep coming, nobody else
# eats. The remedy is a **head start** of so many seconds: a VIP stands in line as if it had come that much
# earlier, and no more. The smaller it is, the safer everybody else. (In operating systems the idea is called
# *ageing*: who waits becomes more important. All age alike, so the order of two guests never changes while
# they wait, and one number decides it when they arrive.)
#
# ### Exercise: `serving_order` · extra, 5 minutes
#
# A level of priority is worth `head_start` seconds. With 4 s, a VIP (priority −1) who comes at 10 stands in
# line as if it had come at 6: before an ordinary guest of 7, behind one of 5.


# %% answer="serving_order"
def serving_order(waiting, head_start):
    """Who goes next, and after that.

    waiting: list of (name, arrival [s], priority), in order of arrival. Priority 0 is ordinary,
             negative goes first, positive may wait.
    head_start: seconds that one level of priority is worth

    Returns the names in the order of service; equal ones keep the order of the list.
    """
    ### BEGIN SOLUTION
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + one[2] * head_start)]
    ### END SOLUTION


# %% check="serving_order"
check.serving_order(serving_order)

# %% [markdown]
# A VIP party on the virtual clock: four slots, seven of eight guests are VIPs, and they alone keep the slots
# busy. What does the eighth guest wait, for a longer and longer head start?

# %%
four = most_served(Continuous(4))
party = [
    replace(one, request=replace(one.request, priority=0.0 if index % 8 == 7 else -1.0))
    for index, one in enumerate(workload(text, 320, **SIZES_OF, rate=1.15 * four, seed=4))
]
rows = []
for head_start in (0.0, 1.0, 4.0, math.inf):
    run = replay(virtual_engine(costs, Continuous(4), head_start=min(head_start, 1e6)), party)
    waits = [ticket.first.stamps[0] - ticket.arrival for ticket in run.tickets]
    others = waits[7::8]
    vips = [wait for index, wait in enumerate(waits) if index % 8 != 7]
    name = "strictly first" if head_start == math.inf else f"{head_start:g} s"
    shown = [timing.percentile(vips, 95), timing.percentile(others, 95), max(others)]
    rows.append([name, *map(timing.duration, shown)])
show(Table(["head start", "VIPs, p95 of TTFT", "others, p95", "others, worst"], rows))

# %% [markdown]
# With 0 s it is first come, first served. Strictly first, the others eat when the VIPs have left: they **starve**,
# and how long is up to the VIPs. With a head start, no guest is overtaken by a VIP who comes later than that.
# Everybody's wait grows here, because the party is 15 % too large for four slots; but the price of being
# ordinary stays near the head start. That is the promise.

# %% [markdown]
# ## 9 · Bug hunt
#
# A colleague has written batching in an evening, from snippets that you will find in many a tutorial. Prompts
# of different lengths are padded on the left, so that all end at the same place. Run it.

# %%
PROMPTS = [
    "def mean(values):\n    return ",
    "import os\nimport json\n\n\ndef read_config(path):\n    with open(path) as handle:\n        return json.",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for name in ",
]
pad = lm.tokenizer.eos_token_id  # the tokenizer has no padding token, so "use the end-of-text token"


def complete(prompts, new=12):
    """Complete several prompts in one batch."""
    rows = [lm.encode(prompt)[0] for prompt in prompts]
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad, device=lm.device)
    for line, row in zip(ids, rows, strict=True):
        line[longest - len(row) :] = row
    out = lm.model.generate(ids, max_new_tokens=new, do_sample=False, pad_token_id=pad)
    return [lm.decode(one[longest:].tolist()) for one in out]


for text_of in complete(PROMPTS):
    print(repr(text_of))

# %% [markdown]
# It runs, and the completions look like code. Do they look like *your* completions? You own a test that needs
# no reading: **company must not change an answer.** Each prompt alone, and in the batch:

# %%
alone = [complete([prompt])[0] for prompt in PROMPTS]
together = complete(PROMPTS)
for one, other in zip(alone, together, strict=True):
    print("same     " if one == other else "DIFFERENT", repr(one), "" if one == other else f"→ {other!r}")

# %% [markdown]
# Short prompts answer differently in company. Find out why before you read on. (If a warning stood above: did
# you read it?)
#
# <details><summary>What is wrong?</summary>
#
# Nobody told the model which positions are padding. Without an `attention_mask` the short rows attend to a
# run of end-of-text tokens as if they were their beginning. `generate` would guess a mask from the padding
# token, but here that is the end-of-text token, which may be a real one, so it does not guess. With a model
# that has *absolute* positions (GPT-2), a mask alone is not enough in a loop of your own: the `position_ids`
# must start at 0 behind the padding. `generate` derives them from the mask.
#
# </details>
#
# Repaired:


# %%
def complete_masked(prompts, new=12):
    """Complete several prompts in one batch, the padding masked."""
    rows = [lm.encode(prompt)[0] for prompt in prompts]
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad, device=lm.device)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = 1
    out = lm.model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=pad)
    return [lm.decode(one[longest:].tolist()) for one in out]


repaired = complete_masked(PROMPTS)
print(sum(one == other for one, other in zip(alone, repaired, strict=True)), "of", len(PROMPTS), "as alone")

# %% [markdown]
# (In 16 bits a near-tie may still fall the other way in company: batched products add up in another order. In
# 32 bits all should agree.) labkit's engine has no padding to forget: it packs, and a row's positions are its
# own.

# %% [markdown]
# ## 10 · The same on a big GPU
#
# What you measured, beside a recorded run of `labcoder@7b` on an H200. It had more requests and longer ones, so
# compare the lines of a column, not the columns. *generate* is transformers' own loop, one request after the
# other without arrivals to wait for; your "one at a time" above did the same with labkit's engine.

# %%
three_requests = [one.request for one in lunch[:3]]
alone_rate = sum(one.max_tokens for one in three_requests) / peers.one_by_one(lm, three_requests)
show(tables.beside_record(lm.name, runs, alone_rate, curve, ratios["continuous"], h200))
print(words["not_recorded"] if h200 is None else "The recorded run:")
for said in tables.notes(h200) if h200 else ():
    print("·", said)

# %% [markdown]
# ## 11 · The next rung
#
# The service with continuous batching, **under load**: its TTFT is the median of the whole lunch, queue
# included, not that of a single guest in an empty restaurant.

# %%
final = runs["continuous, all"]
latencies = [ticket.latency() for ticket in final.tickets]
peak = max(step.used for step in steps["continuous, all"])
ledger.add(
    "continuous batching",
    model=lm.name,
    device=results.device_name(str(lm.device)),
    notebook="03_batch",
    ttft=final.ttft(50),
    tpot=statistics.median(one.tpot for one in latencies),
    throughput=final.tokens_per_second,
    memory=lm.weight_bytes + peak * 16 * token_bytes(lm),
)
ledger.show()

# %% [markdown]
# Compare rungs of one model on one device: if you have not done notebook 01 here, your plain model is missing,
# and a recorded rung is another machine. Against your own plain model a single guest's pace may look worse, for
# many share each step. What has changed is that the restaurant now serves a room, and that nobody waits for the
# end of somebody else's dinner.

# %% [markdown]
# ## Claims checked
#
# What articles say, what you measured, and what was recorded:

# %%
best = (
    f"{timing.duration(lowest)}, from {len(near)} of {len(grid)} settings alike (sizes {sizes_near}); "
    f"continuous {timing.duration(reference.ttft(95))}"
)
show(tables.claims(gains, best, busy, gain, h200))

# %% [markdown]
# **Why they differ**
#
# - *The batch law.* Its arithmetic is right; its constants are not a decode step's. It lets the work grow with
#   the batch from 1.6 requests on. In a real decode step weights and launches are shared, and more rows fit
#   beneath them. (A batch of long *prompts* does behave like the law: prefill is bound by arithmetic with one
#   row already.)
# - *Windows and sizes* suit work that ends for all at once, such as a classifier. With generation, the wait for
#   a running batch to end is longer than any window: under load the window hardly matters, and beside
#   continuous batching it is a pure loss in a quiet hour.
# - *Without a timeout, starvation.* True, and you have seen it.
# - *A fixed size runs out of memory.* True where memory is not asked. Admission by free blocks makes the size
#   a result instead of a setting.
# - *VIPs first.* Only with a head start that ends.
# - *Continuous batching keeps the GPU full.* Fuller: a slot is empty only when nobody waits. How much that
#   gains depends on how unequal the answers are; with equal lengths, all there at once, static batching loses
#   little.

# %% [markdown]
# ## Common misconceptions
#
# - *"Batching makes everybody slower."* It makes each step a little longer, and the queue a lot shorter.
#   Under load the queue is what people feel.
# - *"A bigger batch is always better."* Beyond the bend of the curve throughput stands still and everybody
#   waits longer.
# - *"Continuous batching changes the answers."* It changes who shares a step, not what a row attends to. (In
#   16 bits, near-ties may fall differently with the batch size.)
# - *"The window sets the latency."* Only in a quiet hour. Under load the running batch does.
# - *"GPU memory sets the model size."* It also sets the batch, and with it the throughput.

# %% [markdown]
# ## Interview questions
#
# <details><summary>Why does decoding gain so much from batching, and prefill so little?</summary>
#
# A decode step reads all weights for one token a row; more rows share the reading. A prompt has hundreds of
# tokens sharing it already: it is bound by arithmetic, and twice the prompts take twice the time.
#
# </details>
# <details><summary>TPOT p99 jumps whenever somebody sends a very long prompt. Why, and what helps?</summary>
#
# The whole prompt runs in one step, and all decoding rows wait for it. Chunked prefill gives it a token
# budget a step, with decodes first; the long prompt's own TTFT gets a little longer.
#
# </details>
# <details><summary>A service admits a request when its prompt fits into memory. What can still go wrong?</summary>
#
# Rows grow while they decode. If all grow at once, the pool is short: a running row must give way
# (preemption, by recompute or by moving its cache to the host). Progress is guaranteed only if the first in
# order is never asked.
#
# </details>
# <details><summary>How would you test that a batching engine is correct?</summary>
#
# Each request alone, in any company, in pieces and preempted must give the same tokens (greedy, in 64 bits,
# where no near-tie flips). And at idle every block must be free.
#
# </details>
# <details><summary>In your benchmark static batching nearly equals continuous. Is the benchmark wrong?</summary>
#
# Perhaps its outputs all have one length and all requests are there at the start. Then there is nobody to
# join and nobody who leaves early. Use skewed lengths and arrivals over time.
#
# </details>

# %% [markdown]
# **Where this is used.** vLLM, SGLang, TensorRT-LLM and TGI run continuous batching with chunked prefill;
# look for `max_num_seqs` and `max_num_batched_tokens`: you have written what they limit. Triton's *dynamic
# batcher* is your `form_batches`, and right for models that answer in one pass.
#
# **What next.** The batch is now as large as memory allows, so memory is the next bottleneck: each row's keys
# and values fill the fridge. The next notebook, `04_cache`, is about what lies in it, who may share it, and
# how small it gets.

# %%
progress.show("03_batch")
