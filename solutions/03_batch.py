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
# **How long it takes.** Writing the core exercises about 25 minutes; with reading and measuring about an hour
# and a half. Exercises marked *extra* can wait.
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
# The plain model behind a queue serves **one at a time**. You know its TTFT and TPOT for a single request.
# What does somebody wait who comes when others stand in line? Write your guess in place of `None`.

# %%
predict("TTFT p95, one at a time", None, "s")

# %%
SLOTS = 8


def serve(policy, arrivals, rows=SLOTS):
    """Run requests on the real engine, each at its time; returns what they waited, and every step."""
    with engine_for(lm, policy, rows=rows, blocks=None if on_gpu else 1024, share=False) as engine:
        engine.run([replace(one.request, max_tokens=3) for one in arrivals[:2]])  # warm up
        before = engine.metrics.count
        run = replay(engine, arrivals)
    release(lm)  # a GPU gets its memory back for the next one
    return run, engine.metrics.steps[before:]


runs, steps = {}, {}
runs["one at a time"], steps["one at a time"] = serve(one_at_a_time(), lunch)
predict.compare("TTFT p95, one at a time", runs["one at a time"].ttft(95), "s")

# %%
widgets.show_figure(plots.gantt({"one at a time": steps["one at a time"]}), words["gantt_one"])

# %% [markdown]
# Each bar is a request, by its number; blue is its prompt, orange its decoding. The model did nothing wrong,
# and yet most of the wait is *queue*. No faster kernel mends that: as long as requests arrive faster than
# they are served, the line grows.

# %% [markdown]
# ## 2 · One step for many
#
# A decode step waits for bytes: all weights are read, whoever asks. If eight rows share the step, the weights
# are read once for eight tokens. So is a batch free? Articles give a law. A step has a fixed cost, and
# compute that grows with the batch $b$ above a floor:
#
# $$
# T(b) = 15\,\text{ms} + \max(400,\; b \cdot 128 \cdot 2) \cdot 0.1\,\text{ms}
# \qquad\text{throughput}(b) = \frac{b}{T(b)}
# $$
#
# They conclude: 18.2, 30.2, 34.1, 36.4, 37.7 requests/s at $b$ = 1, 2, 4, 8, 16.

# %% [markdown]
# ### Exercise: `batch_throughput` · core, 3 minutes
#
# Check the arithmetic.


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
# of one. Is that how a decode step behaves? Before you measure: how many times the tokens/s of one row do 16
# rows give here?

# %%
predict("16 rows over one", None, "×")

# %%
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256) if on_gpu else (1, 2, 4, 8, 16, 32)
curve, curve_steps = decode_curve(lm, text, SIZES)
gains = {b: b / curve[b] * curve[1] for b in SIZES}
predict.compare("16 rows over one", gains[16], "×")

# %%
law = {b: batch_throughput(b, 15, 400, 256, 0.1) for b in SIZES}
widgets.show_figure(plots.batch_curve(curve, law), words["curve"])

# %% [markdown]
# On the left, the grey line is a batch that costs nothing, the dashed one the articles' law. The measured
# curve bends late: a step stays nearly as long until arithmetic, or the reading of everybody's cache,
# outweighs the reading of the weights. That is the *ridge* of notebook 01 again: each row adds arithmetic,
# and no weight bytes. Where the curve bends depends on the machine, and a law whose floor ends at 1.6
# requests describes one that hardly has a ridge.
#
# On the right is the price. Every guest in the wok waits for the whole wok: the more rows, the longer between
# two tokens of *each*. This curve, throughput against latency, is the trade of this notebook.

# %% [markdown]
# ## 3 · A rectangle has corners
#
# The simplest way to run a batch is a rectangle: pad every row to the longest. Positions of padding are
# computed like all others, and thrown away.
#
# ### Exercise: `padding_share` · core, 3 minutes
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
for name, lengths in (("prompts", asked), ("answers", wanted)):
    as_they_come, by_length = mean_share(lengths), mean_share(sorted(lengths))
    print(f"{name}: {as_they_come:.0%} padding as they come, {by_length:.0%} sorted first")

# %% [markdown]
# Sorting by length helps with prompts. With answers it cannot: **nobody knows how long an answer will be**
# before it has ended. So two wastes must go: padding inside a step (pack the tokens of all rows into one long
# line, with a note of who is who: labkit's engine does that, and pads nothing), and slots that stand idle
# until the batch's last row is done. Padding of a prompt is paid once, an idle slot at every step.

# %% [markdown]
# ## 4 · Who waits for whom
#
# When does a batch start? **Static**: when it is full. **Dynamic**: when it is full, *or* when its first
# guest has waited for a window. Articles advise windows of 50–200 ms (others 100–300 ms) and batches of 4–32.
#
# ### Exercise: `form_batches` · core, 7 minutes
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
# Twenty-one guests of the lunch in batches of eight, with your function. How long does each wait for company?

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
# load it never shows; it bites the first user of the night.
#
# But the stove is not always free. Both policies, measured on the real engine:

# %%
runs["static"], steps["static"] = serve(static(SLOTS), lunch)
runs["dynamic"], steps["dynamic"] = serve(dynamic(SLOTS, 0.1), lunch)
show(tables.schedulers(runs))

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
# 3. Who waits joins, in order, when **memory** has room for its whole prompt. Nobody overtakes.
#
# ### Exercise: `schedule_step` · core, 9 minutes
#
# One such step. With `running = [("a", 60, 20), ("b", 40, 45)]`, `waiting = [("c", 50)]`, a budget of 64
# tokens, 10 free blocks of 16: b decodes (1), a runs the 40 tokens left of its prompt, and c, whose 50 tokens
# need 4 blocks, joins with the remaining 23: `[("b", 1), ("a", 40), ("c", 23)]`.


# %% answer="schedule_step"
def schedule_step(running, waiting, budget, free_blocks, block_size):
    """One step of continuous batching.

    running:     list of (name, prompt, done), in order: tokens of the prompt, and tokens
                 computed so far. With done >= prompt the row decodes: one token a step.
                 Running rows have their blocks already.
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
# times the tokens/s of static batching will it give?

# %%
predict("continuous over static", None, "×")

# %%
runs["continuous"], steps["continuous"] = serve(Continuous(SLOTS), lunch)
gain = runs["continuous"].tokens_per_second / runs["static"].tokens_per_second
predict.compare("continuous over static", gain, "×")

# %%
three = {name: steps[name] for name in ("static", "dynamic", "continuous")}
widgets.show_figure(plots.gantt(three), words["gantt"])

# %% [markdown]
# White is waste: a slot that somebody in the queue could have had. In the upper two, short requests leave and
# their slots stay empty until the longest has ended. Below, the next guest sits down at once; what is white
# at the end is the lunch running out of guests.
#
# And why eight slots? A static batch needs a fixed size, for it cannot stop growing once it has begun. A
# continuous one takes as many as **memory** holds, and gives them up one by one:

# %%
runs["continuous, memory"], steps["continuous, memory"] = serve(
    Continuous(), lunch, rows=256 if on_gpu else 32
)
show(tables.schedulers(runs))

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
# and a lunch is over in a tenth of a second. The costs $c$ come from the steps of section 2 (least squares,
# none negative). Engine, scheduler and blocks are the real ones; only the model is missing.

# %%
costs = CostModel.fit(curve_steps)
print(f"a step {timing.duration(costs.step)}, a token {timing.duration(costs.token)}, "
      f"a decoding row {timing.duration(costs.row)}")  # fmt: skip

# %% [markdown]
# A model is worth what its predictions are worth. None of the runs above was used for the fit:

# %%
policies = {
    "one at a time": one_at_a_time(),
    "static": static(SLOTS),
    "dynamic": dynamic(SLOTS, 0.1),
    "continuous": Continuous(SLOTS),
}
told = {name: replay(virtual_engine(costs, one, rows=SLOTS), lunch) for name, one in policies.items()}
show(tables.prediction(told, {name: runs[name] for name in policies}))

# %% [markdown]
# The order of the policies should be right, and the sizes near. What is missing: the engine's own Python
# between steps, and whatever else this machine was doing. Now 120 guests instead of 24, at 60 % of what
# continuous batching could serve, and every window with every size that articles advise. Move the sliders.

# %%
SIZES_OF = {"prompts": (16, 96), "outputs": skewed((6, 14), (40, 64), 0.25)}  # as in the lunch's trace
at_once = workload(text, 120, **SIZES_OF, seed=4)
capacity = len(at_once) / replay(virtual_engine(costs, Continuous()), at_once).seconds  # requests/s


def guests(share, count=120):
    """A longer lunch, its rate a share of the capacity."""
    return workload(text, count, **SIZES_OF, rate=share * capacity, seed=4)


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
print(f"best: {best_window} ms, {best_size} requests; continuous, with nothing to tune: "
      f"{timing.duration(reference.ttft(95))} (capacity {capacity:.0f} requests/s)")  # fmt: skip

# %% [markdown]
# A batch that is too small cannot keep up, and its queue grows whatever the window. Once the size suffices,
# the window hardly matters: while one batch cooks, the next fills up by itself. What no setting removes is
# the wait for a running batch to *end*. The same, over the load:

# %%
policies["continuous"] = Continuous()  # as many as memory holds
shares = (0.05, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)
policies["static"], policies["dynamic"] = static(16), dynamic(16, 0.1)
curves = {
    name: [
        (share * capacity, replay(virtual_engine(costs, policy), guests(share, 80)).ttft(95))
        for share in shares
    ]
    for name, policy in policies.items()
}
widgets.show_figure(plots.load_curve(curves, limit=0.2), words["load"])

# %% [markdown]
# One at a time is lost first: its line climbs to the length of the whole queue. Static batching is bad at
# *both* ends: with few guests they wait for the batch to fill. A window mends that end, and only that one.
# Read the picture by the target of notebook 01: how many requests/s does each policy serve below the grey
# line?

# %% [markdown]
# ## 7 · The wok is as large as the fridge
#
# "As many as memory holds": how many is that? Beside the weights, each row keeps the keys and values of its
# tokens (the *KV cache*; notebook 04 is about it), in blocks of a fixed number of tokens.
#
# ### Exercise: `largest_batch` · core, 3 minutes
#
# A share of the memory may be used (the rest is for activations). Weights come out of it; what is left is
# handed out in whole blocks.


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
# give its blocks back and start over (*preemption*). The afternoon again, with ever fewer blocks:

# %%
crowd = guests(1.0)
tokens = [len(one.request.prompt) + one.request.max_tokens for one in crowd]
held = [-(-count // 16) for count in tokens]  # blocks of each, at its end
need = sum(held[:32])
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
# eats. The remedy is **ageing**: waiting makes everybody more important. All age at the same speed, so the
# order of two guests never changes while they wait, and a single number decides it when they arrive.
#
# ### Exercise: `serving_order` · extra, 5 minutes
#
# A level of priority is worth `ageing` seconds of waiting: a VIP (priority −1) stands in line as if it had
# come that much earlier.


# %% answer="serving_order"
def serving_order(waiting, ageing):
    """Who goes next, and after that.

    waiting: list of (name, arrival [s], priority), in order of arrival. Priority 0 is ordinary,
             negative goes first, positive may wait.
    ageing:  seconds of waiting that one level of priority is worth

    Returns the names in the order of service; equal ones keep the order of the list.
    """
    ### BEGIN SOLUTION
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + one[2] * ageing)]
    ### END SOLUTION


# %% check="serving_order"
check.serving_order(serving_order)

# %% [markdown]
# An overloaded afternoon on the virtual clock, four slots, every third guest a VIP. What do both wait, for
# more and more ageing?

# %%
rush = [
    replace(one, request=replace(one.request, priority=-1.0 if index % 3 == 0 else 0.0))
    for index, one in enumerate(guests(0.8))
]
rows = []
for ageing in (0.0, 1.0, 2.0, 1000.0):
    run = replay(virtual_engine(costs, Continuous(4), ageing=ageing), rush)
    waits = [
        [ticket.first.stamps[0] - ticket.arrival for ticket in run.tickets[kind::3]] for kind in (0, 1, 2)
    ]
    vips, others = waits[0], waits[1] + waits[2]
    shown = [timing.duration(timing.percentile(those, 95)) for those in (vips, others)]
    rows.append([f"{ageing:g} s", *shown, timing.duration(max(others))])
show(Table(["a level is worth", "VIPs, p95 of TTFT", "others, p95", "others, worst"], rows))

# %% [markdown]
# With 0 s it is first come, first served. With 1000 s VIPs are strictly first, and the others pay for it; no
# guest is overtaken by a VIP who comes more than the ageing later, and that is the promise that keeps them
# from starving.

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
# What you measured, beside a recorded run of `labcoder@7b` on an H200 (more requests, longer ones: compare
# the ways within a column).

# %%
few = [one.request for one in lunch[:3]]
alone_rate = sum(one.max_tokens for one in few) / peers.one_by_one(lm, few)
if h200 is None:
    print(words["not_recorded"])
show(tables.beside_record(lm.name, runs, alone_rate, h200))

# %% [markdown]
# ## 11 · The next rung
#
# The service with continuous batching, **under load**: its TTFT is the median of the whole lunch, queue
# included, not that of a single guest in an empty restaurant.

# %%
final = runs["continuous, memory"]
latencies = [ticket.latency() for ticket in final.tickets]
peak = max(step.used for step in steps["continuous, memory"])
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
# Against the plain model a single guest's pace may look worse: many share each step. What has changed is that
# the restaurant now serves a room, and that nobody waits for the end of somebody else's dinner.

# %% [markdown]
# ## Claims checked
#
# What articles say, what you measured, and what was recorded:

# %%
waited = [timing.duration(run.ttft(95)) for run in (grid[best_window, best_size], reference)]
best = f"{best_window} ms, {best_size}: {waited[0]} (continuous: {waited[1]})"
show(tables.claims(gains, best, gain, h200))

# %% [markdown]
# **Why they differ**
#
# - *The batch law* (11): its arithmetic is right, its constants are not a decode step's. It lets compute grow
#   with the batch from 1.6 requests on. In a real decode step reading the weights is the floor, and it
#   carries many more rows. (A batch of long *prompts* does behave like the law: prefill is bound by
#   arithmetic with one row already.)
# - *Windows and sizes* (12): they fit work that ends for all at once, such as a classifier. With generation,
#   the wait for a running batch to end is far longer than any window, so under load the window hardly
#   matters, and in a quiet hour it is a pure loss. *Without a timeout, starvation*: true, and you have seen
#   it. *A fixed size runs out of memory*: true where memory is not asked; admission by free blocks makes the
#   size a result. *VIPs first*: only with ageing.
# - *Continuous batching keeps the GPU full* (13): true while guests wait. How much it gains depends on how
#   unequal the answers are: with equal lengths, all there at once, static batching loses little.

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
