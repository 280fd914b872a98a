# %% [markdown]
# # 01 · Where does the time go?
#
# You have just been hired. The product completes code while people type, and they complain. What is known
# about people is simple: **a wait of 200 ms is felt, and after a second they leave.** Everyone in the team
# has a favourite culprit for the slowness, and nobody has a number. Before anything is made faster,
# somebody has to measure. That is you, today.
#
# The team has agreed on a target: **a completion of 32 tokens within 200 ms, its first token within 100 ms.**
# At the end of this notebook you judge it with numbers.
#
# **After this notebook you can**
#
# - time work on a device that works behind your back, without fooling yourself,
# - describe a stream of tokens by TTFT, TPOT and ITL, and say how many tokens fit into 200 ms,
# - split a request into stages that add up,
# - compute from a model's shape what it *must* cost: FLOPs, bytes, the floor no program can beat,
# - find out what keeps a device waiting, and say what share of the machine is really used.
#
# **You need** Python functions, lists and dicts. No GPU, no network: everything runs on a small model that
# lies in the repository. Where a big GPU was measured, its figures stand beside yours, and a badge says
# which is which. Every term is in [docs/glossary.md](../docs/glossary.md), with its formula.
#
# **How it goes.** A question; you *predict* a number; you measure it; you write the idea down as one short
# function; `check` tries it on fresh random inputs; you measure again. Stuck? `check.hint("time_async")`
# gives a nudge, then a bigger one. Later cells never depend on your answer.
#
# **How long it takes.** The core exercises about 25 minutes; the core path with its reading and measuring
# about an hour; everything under two hours. Exercises marked *extra* can wait.
#
# **Run cells one at a time** (Shift+Enter): *Run All* stops at the first exercise that is not done yet. If a
# cell does not come back, press ■ (stop) above.
#
# Run this first cell; you need not read it.

# %% role="setup"
import importlib.util
import math
import random
import statistics
import time
from itertools import pairwise

import torch

import labkit
from labkit import profile, quality, results, timing
from labkit.course import Table, check, ledger, predict, progress, show, texts, widgets
from labkit.course.exercises.profile.device import SimulatedDevice
from labkit.course.exercises.profile.planted import FAULTS, planted_timeline
from labkit.course.plots import profile as plots
from labkit.course.plots.timelines import timelines
from labkit.course.tables import profile as tables
from labkit.profile.grid import measure_grid

words = texts.words("01_profile")

# %% [markdown]
# **The ledger** is your own ladder, from the plain model to the finished service. Every notebook opens with
# it and ends by adding a rung. Yours has none yet; what you see was recorded on a big GPU. Its columns TTFT and
# TPOT are defined in section 3: come back to this table then.

# %%
ledger.show()

# %% [markdown]
# The exercises of this notebook, with their minutes of writing:

# %%
progress.show("01_profile")

# %% [markdown]
# ## 1 · Hear the service answer
#
# `labkit.load()` takes the model that the variable `LABKIT_MODEL` names, or else the largest that makes
# sense on this machine. `labcoder` is a small Llama trained on Python code; `labcoder@7b` is the same model
# blown up to the shape of Llama-2-7B: it says what labcoder says, at a 7B's price.

# %%
lm = labkit.load()
print(f"{lm.name}: {lm.weight_bytes / 1e6:,.0f} MB of weights in {lm.dtype} on {lm.device}")

# %% [markdown]
# Somebody has a file of about 400 tokens open, types the beginning of a function, and waits.
#
# Before you run it: how long until the first token, and how long for each one after it? Write your guesses
# in place of `None`. Nobody grades them; a number you have guessed is a number you remember.

# %%
predict("first token", None, "ms")
predict("each further token", None, "ms")

# %%
OPEN_FILE = quality.evaluation_text("fixed")[:1300].rpartition("\n\n")[0]
TYPED = 'def main():\n    parser = argparse.ArgumentParser(description="Show the weather")\n'
PROMPT = OPEN_FILE + "\n\n\n" + TYPED

answer = profile.generate(lm, PROMPT, 40)
print(TYPED + "▸" + lm.decode(answer.ids))

# %%
print(f"{len(answer.ids)} tokens in {timing.duration(answer.latency.e2e)}")

# %% [markdown]
# (After ▸ the model writes.) Run the two cells above once more. The second time is usually faster: the first
# call of anything pays for memory, caches and *kernels* (the programs that run on the device) which later
# calls find ready. On a busy machine it may even be slower. Which of the two times is *the* time? So far you
# have a stopwatch and an anecdote. Let us build a measurement. (And close what else is running: your figures
# will thank you.)

# %% [markdown]
# ## 2 · A clock that does not lie
#
# Ask a waiter how long a dish takes, and time how long he needs to hand the order to the kitchen: that is
# what timing a GPU call amounts to. The call **returns as soon as the work is queued**; the kitchen cooks
# later.
#
# One large matrix product on this machine, timed twice: when the call returns, and when the work is done.

# %%
size = 4096 if lm.device.type == "cuda" else 1024
matrix = torch.randn(size, size, device=lm.device, dtype=lm.dtype)
product = matrix @ matrix  # the first call is slow: not this one is timed

timing.synchronize(lm.device)
start = time.perf_counter()
product = matrix @ matrix
returned = time.perf_counter() - start
timing.synchronize(lm.device)
finished = time.perf_counter() - start
print(f"returned after {timing.duration(returned)}, finished after {timing.duration(finished)}")

# %% [markdown]
# On a GPU the two differ by a factor. On a CPU they agree, for the call itself does the work. That is what
# makes this mistake so durable: it passes every test on a laptop and lies on the server.
#
# So that you can practise anywhere, the check hands your function a *simulated device*: it queues like a
# GPU and keeps its own clock, and its true times are known.

# %% [markdown]
# ### Exercise: `time_async` · core, 6 minutes
#
# Report how long **one launch** takes on an asynchronous device. Three things go wrong in the wild: the
# clock starts while earlier work still runs, it stops before this work is done, or slow first calls are
# counted. And one lucky or unlucky repeat should not decide: take the median (`statistics.median`, imported
# above).


# %% answer="time_async"
def time_async(launch, synchronize, now, warmup, repeats):
    """Median time of one launch on a device that works asynchronously.

    launch():      hands the device one piece of work and returns at once
    synchronize(): returns when the device has nothing left to do
    now():         reads the clock [s]; use it instead of time.perf_counter
    warmup:        number of launches made first and not counted (0 or more)
    repeats:       number of measurements, one launch each (1 or more)

    Returns the median of the measurements [s].
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        synchronize()  # whatever is queued now is not ours to time
        start = now()
        launch()
        synchronize()  # the work, not just the order
        seconds.append(now() - start)
    return statistics.median(seconds)
    ### END SOLUTION


# %% check="time_async"
check.time_async(time_async)

# %% [markdown]
# Measure again, with your function: a simulated device that needs 30 ms for each of its first three
# launches and 3 ms from then on.

# %%
time_async = check.use("time_async", time_async)

device = SimulatedDevice([0.030] * 3 + [0.003])
start = device.now()
device.launch()
naive = device.now() - start

device = SimulatedDevice([0.030] * 3 + [0.003])
yours = time_async(device.launch, device.synchronize, device.now, 3, 9)
print(f"launch and look at the clock: {timing.duration(naive)}    time_async: {timing.duration(yours)}")

# %% [markdown]
# And the matrix product, on the real device (a product of $n \times n$ matrices takes $2n^3$ operations):

# %%
real = time_async(lambda: matrix @ matrix, lambda: timing.synchronize(lm.device), time.perf_counter, 3, 9)
print(f"{size} × {size}: {timing.duration(real)}, {2 * size**3 / real / 1e12:.3g} TFLOP/s")

# %% [markdown]
# From here on `labkit.timing` does this for you: it warms up, waits on both sides, repeats, and reports a
# median with its spread. One caution: waiting after every launch adds the cost of waiting. For a kernel of
# a few microseconds, time a batch of launches between two waits and divide.

# %% [markdown]
# ## 3 · Waiting, in four numbers
#
# A guest does not experience "throughput". She waits for the first dish, and then for each dish after it. A
# request sent at $t_0$ whose $n$ tokens arrive at $t_1 \dots t_n$ has
#
# $$
# \text{TTFT} = t_1 - t_0 \qquad
# \text{ITL}_i = t_{i+1} - t_i \qquad
# \text{E2E} = t_n - t_0 \qquad
# \text{TPOT} = \frac{\text{E2E} - \text{TTFT}}{n-1}
# $$
#
# **TTFT** (time to first token) is the wait for the first dish. **ITL** (inter-token latency) is every
# single gap after it; **TPOT** (time per output token) their mean in this one request. **E2E** (end to end)
# is the whole evening. Tools differ in these definitions (some divide by $n$): when you compare two
# dashboards, compare their formulas first.

# %% [markdown]
# ### Exercise: `latency_terms` · core, 4 minutes
#
# A small case to think with: sent at 2.0 s, tokens at 2.5, 2.6, 2.8 s. TTFT 0.5 s, gaps 0.1 and 0.2 s, E2E
# 0.8 s, TPOT 0.15 s. With a single token there is no pace: TPOT is `None`.


# %% answer="latency_terms"
def latency_terms(sent, stamps):
    """The latency terms of one request.

    sent:   when the request was sent [s]
    stamps: list of n >= 1 times at which its tokens arrived [s], rising

    Returns a dict:
        "ttft": seconds from sent to the first token
        "tpot": (E2E - TTFT) / (n - 1) [s]; None when n is 1
        "itl":  list of the n - 1 gaps between neighbouring tokens [s]
        "e2e":  seconds from sent to the last token
    """
    ### BEGIN SOLUTION
    n = len(stamps)
    ttft = stamps[0] - sent
    e2e = stamps[-1] - sent
    return {
        "ttft": ttft,
        "tpot": (e2e - ttft) / (n - 1) if n > 1 else None,
        "itl": [later - earlier for earlier, later in pairwise(stamps)],
        "e2e": e2e,
    }
    ### END SOLUTION


# %% check="latency_terms"
check.latency_terms(latency_terms)

# %% [markdown]
# Now the service itself, properly: a warm-up, then three times the same request of 32 tokens. Each line gives
# the median of the three and, in brackets, their **spread**. (p50 is the median, p99 the value that only one
# gap in a hundred exceeds. The *median run* is the one whose E2E is the median; its own TTFT need not be the
# median TTFT.)

# %%
report = profile.latency_report(lm, PROMPT, 32, repeats=3)
print(report)

# %%
predict.compare(
    {"first token": report.ttft.median * 1e3, "each further token": report.tpot.median * 1e3}, "ms"
)

# %% [markdown]
# The median run: its terms by your function, and its waits as a picture, one bar a token.

# %%
latency_terms = check.use("latency_terms", latency_terms)

run = report.typical
terms = latency_terms(run.sent, run.stamps[run.silent :])  # tokens that carried no text do not count
print({name: timing.duration(terms[name]) for name in ("ttft", "tpot", "e2e")}, len(terms["itl"]), "gaps")
widgets.show_figure(plots.token_gaps(run, marks={"200 ms": 0.2}), words["token_gaps"])

# %% [markdown]
# The first bar is another kind of work. Before the first token the model reads the *whole prompt*; after
# that, each step reads one token. These are two jobs, **prefill** and **decode**, and much of this course
# is about the difference. (How far the first bar stands out depends on the device: far on a CPU, little on
# a big GPU. Section 6 says why.)

# %% [markdown]
# ## 4 · The latency law
#
# The definitions add up by construction:
#
# $$\text{E2E} = \text{TTFT} + \text{TPOT} \cdot (n - 1)$$
#
# So which of the two deserves your week? That depends on $n$. An article claims: with a TTFT of 40 ms and a
# TPOT of 5 ms, the first token is 20.5 % of the wait at 32 tokens, 5.9 % at 128 and 1.5 % at 512. Is that
# right?

# %% [markdown]
# ### Exercise: `ttft_share` · core, 2 minutes
#
# Check the claim: one line of code.


# %% answer="ttft_share"
def ttft_share(ttft, tpot, tokens):
    """Share of the end-to-end latency that is the wait for the first token.

    ttft, tpot: seconds
    tokens:     output tokens, n >= 1

    Returns TTFT / E2E, between 0 and 1.
    """
    ### BEGIN SOLUTION
    return ttft / (ttft + tpot * (tokens - 1))
    ### END SOLUTION


# %% check="ttft_share"
check.ttft_share(ttft_share)

# %%
ttft_share = check.use("ttft_share", ttft_share)

ttft, tpot = report.ttft.median, report.tpot.median
claimed = [f"{ttft_share(0.040, 0.005, n):.1%}" for n in (32, 128, 512)]
ours = [f"{ttft_share(ttft, tpot, n):.1%}" for n in (32, 128, 512)]
rows = [["40 ms, 5 ms", *claimed], [lm.name, *ours]]
show(Table(["", "n = 32", "n = 128", "n = 512"], rows, words["share"]))

# %% [markdown]
# The claim's arithmetic holds. What it says about *your* service depends on the prompt: the longer the
# prompt, the larger TTFT, and the later decode takes over.
#
# ### Exercise: `tokens_within` · core, 3 minutes
#
# Turn the law around: how much of an answer has a person seen after 200 ms, and after one second? The first
# token arrives at `ttft`, then one every `tpot`.


# %% answer="tokens_within"
def tokens_within(ttft, tpot, budget):
    """How many tokens have arrived `budget` seconds after the request was sent.

    ttft, tpot, budget: seconds, all positive

    Returns a whole number, 0 or more; a token that arrives exactly at the limit counts.
    """
    ### BEGIN SOLUTION
    if budget < ttft:
        return 0
    return 1 + math.floor((budget - ttft) / tpot)
    ### END SOLUTION


# %% check="tokens_within"
check.tokens_within(tokens_within)

# %%
tokens_within = check.use("tokens_within", tokens_within)

for budget in (0.2, 1.0):
    print(f"{timing.duration(budget)}: {tokens_within(ttft, tpot, budget)} tokens of {lm.name}")

# %% [markdown]
# ## 5 · Five stages
#
# An article says where the time goes, on an A100 with LLaMA-7B: preprocessing 5 %, graph compilation 15 %,
# forward pass 50 %, sampling 25 %, postprocessing 5 %. Before you measure: which share will the forward
# pass (prefill and decode together) have here?

# %%
predict("forward share", None, "%")

# %%
stages = profile.stage_report(lm, PROMPT, 32, repeats=3)
print(stages)

# %%
predict.compare("forward share", 100 * (stages.shares["prefill"] + stages.shares["decode"]), "%")

# %% [markdown]
# The *remainder* is what no stage claims. A budget without one is a budget that nobody checked.
#
# The last column times the same stages **without waiting at their borders**. On a CPU the two columns differ
# only by noise (on a busy machine that can be a lot). On a GPU the forward pass merely *queues* its kernels;
# whoever first touches a result, here `int(token)` in sampling, waits for what is left in the queue and gets
# the blame. So without waiting, sampling should grow at the cost of prefill and decode. Does it? One bar for
# each:

# %%
h200 = results.load("profile")

article = {"preprocessing": 5, "compile": 15, "forward": 50, "sampling": 25, "postprocessing": 5}
bars = {words["article"]: article}
bars[words["here_waiting"]] = {**stages.stages, "remainder": stages.remainder}
bars[words["here_not_waiting"]] = stages.unsynchronised
if h200:
    kept = h200["figures"]["stages"]
    bars[words["recorded_waiting"]] = {**kept["stages"], "remainder": kept["remainder"]}
    bars[words["recorded_not_waiting"]] = kept["unsynchronised"]
else:
    print(words["not_recorded"])
widgets.show_figure(plots.stage_bar(bars, shares=True), words["stage_bar"])

# %% [markdown]
# (The article does not split its forward pass into prefill and decode: it is drawn in dark grey.)
#
# Each bar is one run, the one with the median total. A stage that differs between two bars has moved only if
# it differs by more than the runs of one kind differ among themselves:

# %%
kinds = {
    words["here_waiting"]: [run.seconds for run in stages.runs],
    words["here_not_waiting"]: [run.seconds for run in stages.unsynchronised_runs],
}
if h200:
    kinds[words["recorded_waiting"]] = [run["seconds"] for run in kept["runs"]]
    kinds[words["recorded_not_waiting"]] = [run["seconds"] for run in kept["unsynchronised_runs"]]
show(tables.stage_runs(kinds, ["prefill", "decode", "sampling"]))

# %% [markdown]
# Look at the recorded GPU in the table. Sampling takes the same with and without waiting: nothing is left to wait
# for. Its host is slower than the GPU, so the queue is always empty. (Section 7 finds out why.) Its prefill should
# *shrink* when the clock stops before the work is done; instead the two ranges overlap, because launching a
# prefill takes this host a different time in every run. No time has moved there, and no single run would have
# told you so. The faster a host gets, the more a clock that does not wait will lie.
#
# And compilation? It is paid **once**, by whoever comes first, so its share is whatever you divide it by.
# Here the decode step goes through `torch.compile`. Without a GPU the graph is only captured, not
# optimised, so that you need no C++ compiler; with optimisation it takes longer.

# %%
optimising = lm.device.type == "cuda" and importlib.util.find_spec("triton") is not None
backend = "inductor" if optimising else "eager"
first_request = profile.stage_report(lm, PROMPT, 16, compile=True, backend=backend, repeats=1, warmup=0)
once, later = first_request.compile_seconds, first_request.steady.e2e
print(f"compile ({backend}): {timing.duration(once)}, once; a later request takes {timing.duration(later)}")
for requests in (1, 100, 10_000):
    print(f"  share of compilation after {requests:>6,} requests: {once / (once + requests * later):.1%}")

# %% [markdown]
# ### Exercise: `stage_budget` · extra, 12 minutes
#
# Tools hand you a *trace*: events with a name, a start and an end. Events nest (a compilation inside the
# first forward pass) and overlap (one token is streamed while the next is computed). Adding up their
# lengths counts instants twice. Give every instant to **the running event that started last**, and what
# belongs to none to the `"remainder"`.


# %% answer="stage_budget"
def stage_budget(events, end):
    """Seconds of every stage of one request, each instant counted once.

    events: list of (stage, start, stop), times in seconds after the request was sent, in any order;
            they may nest and overlap, a stage may come several times, no two start at the same instant
    end:    when the request ended [s]; no event goes beyond it

    Returns a dict stage -> seconds, with the key "remainder" for the time from 0 to end in which no event
    runs.
    """
    ### BEGIN SOLUTION
    cuts = sorted({0.0, end} | {time for _, start, stop in events for time in (start, stop)})
    budget = {"remainder": 0.0}
    for left, right in pairwise(cuts):  # between two neighbouring cuts nothing changes
        running = [event for event in events if event[1] <= left and right <= event[2]]
        stage = max(running, key=lambda event: event[1])[0] if running else "remainder"
        budget[stage] = budget.get(stage, 0.0) + right - left
    return budget
    ### END SOLUTION


# %% check="stage_budget"
check.stage_budget(stage_budget)

# %% [markdown]
# ## 6 · What must it cost?
#
# You know what the service takes. Is that much? A model's shape tells what it takes **at the least**.
#
# A minute of anatomy. In each layer every token leaves two vectors behind, a *key* and a *value*. A new
# token compares its *query* with all keys (the scores) and mixes the values by these scores (the weighted
# sum). It does so in several *heads* side by side, each with vectors of length $d$, the head dimension. Keys
# and values are kept for later steps: that is the **KV cache**. Several query heads may share one head of
# keys and values.
#
# *FLOPs.* A new token meets every weight once: a multiplication and an addition, so 2 FLOPs for each weight.
# It also attends to every token before it and to itself. Call each such (new token, token it attends to) a
# **pair**: a pair costs every query head in every layer $2d$ FLOPs for the score and $2d$ for the weighted
# sum. Three new tokens after none make $1 + 2 + 3 = 6$ pairs.
#
# *Bytes.* A pass reads every weight once, no matter for how many new tokens. It also reads, in every layer and
# for every token seen so far (the new ones too), one key and one value of $d$ values for each KV head. Think
# of a cook who must fetch the whole recipe book for every round: forty portions in one round (prefill), or one
# portion a round (decode).
#
# ### Exercise: `step_cost` · extra, 12 minutes
#
# Recommended, if you have the time: this one function is the theory of the rest of the course. It covers both
# jobs, *prefill* of 300 tokens (`new=300, past=0`) and a *decode* step after them (`new=1, past=300`). If you
# skip it, go on below its check: labkit's own version serves.
#
# A small case to think with: 1,000 weights, 3 layers, 4 query heads, 2 KV heads, $d = 8$, 4 bytes a value.
#
# | | pairs | FLOPs | bytes |
# |---|---|---|---|
# | `new=1, past=9` | 10 | 2·1,000·1 + 4·8·4·3·10 = 5,840 | (1,000 + 2·8·2·3·10)·4 = 7,840 |
# | `new=3, past=0` | 6 | 2·1,000·3 + 4·8·4·3·6 = 8,304 | (1,000 + 2·8·2·3·3)·4 = 5,152 |


# %% answer="step_cost"
def step_cost(shape, new, past):
    """FLOPs and bytes of one forward pass over `new` tokens that follow `past` cached ones.

    shape: dict of whole numbers
        "weights":  weights of the whole model, all layers together
        "layers", "heads" (query heads, in each layer), "kv_heads" (in each layer), "head_dim"
        "bytes":    bytes of one value, for weights and cache alike
    new:  tokens computed in this pass, 1 or more
    past: tokens whose keys and values are cached already, 0 or more

    Returns (flops, nbytes), counted as described above.
    """
    ### BEGIN SOLUTION
    pairs = new * past + new * (new + 1) // 2
    flops = 2 * shape["weights"] * new + 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return flops, (shape["weights"] + cached) * shape["bytes"]
    ### END SOLUTION


# %% check="step_cost"
check.step_cost(step_cost)

# %% [markdown]
# This model, this prompt. One refinement: the last projection, from the hidden state to the vocabulary, is
# computed for the last token alone, so it is added once.

# %%
step_cost = check.use("step_cost", step_cost)

card_shape = profile.shape_of(lm.config)
shape = {
    "weights": card_shape.body_matrix,
    "layers": card_shape.layers,
    "heads": card_shape.heads,
    "kv_heads": card_shape.kv_heads,
    "head_dim": card_shape.head_dim,
    "bytes": lm.dtype.itemsize,
}
prompt_tokens = report.prompt_tokens


def pass_cost(new, past):
    """FLOPs and bytes of one pass: the layers for every new token, the last projection once."""
    flops, nbytes = step_cost(shape, new, past)
    return flops + 2 * card_shape.head_matrix, nbytes + card_shape.head_matrix * shape["bytes"]


for name, new, past in (("prefill", prompt_tokens, 0), ("decode", 1, prompt_tokens)):
    flops, nbytes = pass_cost(new, past)
    print(f"{name:>8}: {flops / 1e9:10,.3f} GFLOP  {nbytes / 1e6:10,.1f} MB  {flops / nbytes:8.2f} FLOP/B")

# %% [markdown]
# Nearly the same bytes, and hundreds of times the work. The last column is the **arithmetic intensity**,
# FLOPs per byte moved. A device has such a number too, its **ridge**: peak FLOP/s divided by bandwidth.
# Below the ridge the memory is the bottleneck, above it the arithmetic. Both clocks run at once, so no pass
# is faster than
#
# $$T_\text{floor} = \max\left(\frac{\text{FLOPs}}{\text{peak}},\ \frac{\text{bytes}}{\text{bandwidth}}\right)$$
#
# ### Exercise: `roofline` · core, 4 minutes
#
# Mind the units: datasheets speak of TFLOP/s and GB/s.


# %% answer="roofline"
def roofline(flops, nbytes, peak_tflops, bandwidth_gbs):
    """Where a pass lies under the roofline of a device.

    flops, nbytes: FLOPs and bytes of the pass
    peak_tflops:   what the device can compute [TFLOP/s = 1e12 FLOP/s]
    bandwidth_gbs: what its memory can deliver [GB/s = 1e9 B/s]

    Returns a dict:
        "intensity": FLOPs per byte of the pass [FLOP/B]
        "ridge":     peak over bandwidth of the device [FLOP/B]
        "floor_ms":  the least time the pass can take [ms]
        "bound":     "memory" if moving the bytes takes longer than the arithmetic, else "compute"
    """
    ### BEGIN SOLUTION
    compute = flops / (peak_tflops * 1e12)
    memory = nbytes / (bandwidth_gbs * 1e9)
    return {
        "intensity": flops / nbytes,
        "ridge": peak_tflops * 1e12 / (bandwidth_gbs * 1e9),
        "floor_ms": 1e3 * max(compute, memory),
        "bound": "memory" if memory > compute else "compute",
    }
    ### END SOLUTION


# %% check="roofline"
check.roofline(roofline)

# %% [markdown]
# A datasheet's peak is a promise. Measure what this machine keeps of it: one large read, one large matrix
# product.

# %%
ceilings = profile.ceilings(lm.device, lm.dtype)
print(ceilings)

# %% [markdown]
# Before you look: how many times slower than its floor is a decode step of our plain loop?

# %%
predict("decode over its floor", None, "×")

# %%
roofline = check.use("roofline", roofline)

peak, bandwidth = ceilings.flops / 1e12, ceilings.bandwidth / 1e9
prefill = roofline(*pass_cost(prompt_tokens, 0), peak, bandwidth)
decode = roofline(*pass_cost(1, prompt_tokens), peak, bandwidth)
for name, phase, measured in (("prefill", prefill, ttft), ("decode", decode, tpot)):
    floor, bound = phase["floor_ms"], phase["bound"]
    print(f"{name:>8}: floor {floor:.3g} ms ({bound}-bound), measured {measured * 1e3:.3g} ms")
    if measured * 1e3 < floor:
        print(words["below_floor"])
predict.compare("decode over its floor", tpot * 1e3 / decode["floor_ms"], "×")

# %% [markdown]
# What sets the floor is one thing, what a pass really waits for another. The distance tells: near the floor it
# is the same; a pass at several times its floor waits for something that neither bytes nor FLOPs explain.

# %%
print(tables.verdict("prefill", prefill["bound"], ttft * 1e3, prefill["floor_ms"]))
print(tables.verdict("decode", decode["bound"], tpot * 1e3, decode["floor_ms"]))

# %% [markdown]
# `labkit`'s **cost card** does the same for any model on any device, with the formula beside each number.

# %%
card = profile.cost_card(lm, ceilings, prompt=prompt_tokens, context=prompt_tokens + 16)
print(card)

# %% [markdown]
# And as a picture. Hollow dots: what the roof allows. Filled dots: what was measured. The dotted line
# between them is the room that the rest of this course works in. The decode dots move right as the batch
# grows, for all its *rows* (the requests that are computed together) share one reading of the weights; hold
# that thought for notebook 03.

# %%
lengths, batches = (prompt_tokens,), (1, 8, 64)
seconds = {"prefill_seconds": {prompt_tokens: ttft}, "decode_seconds": {1: tpot}}
points = profile.roofline_points(lm, ceilings, prompts=lengths, contexts=lengths, batches=batches, **seconds)
widgets.show_figure(plots.roofline(points, ceilings), words["roofline"])

# %% [markdown]
# **A claim, checked.** "An H100 does 1,979 TFLOPS in FP16 and reads 3 TB/s, so about 650 operations per
# byte." The division gives 660. But 1,979 is the figure for matrices of which two in four values are zero by
# arrangement (*2:4 sparsity*); language models are dense. And 3 TB/s is rounded down.

# %%
h100 = profile.DATASHEET["H100-SXM"]
rows = [
    [words["as_claimed"], "1,979", "3,000", f"{1979e12 / 3000e9:.0f}"],
    [words["dense"], f"{h100.flops / 1e12:,.0f}", f"{h100.bandwidth / 1e9:,.0f}", f"{h100.ridge:.0f}"],
    [ceilings.name, f"{peak:.3g}", f"{bandwidth:,.0f}", f"{ceilings.ridge:.3g}"],
]
show(Table(["", "TFLOP/s", "GB/s", "ridge (FLOP/B)"], rows))

# %% [markdown]
# Either way decode, at about one FLOP per byte in 16 bits, is far left of any ridge. The sparse figure
# matters when you ask how many rows to batch: aim at the dense ridge, not at twice that.
#
# **Another claim.** "An unoptimised 7B takes 3–5 s for 20 tokens." On what? The floors of Llama-2-7B's
# shape in 16 bits, for a short prompt of 32 tokens, on devices you may not have:

# %%
from labkit.models import PRESETS, inflated_config

seven = inflated_config(lm.config, PRESETS["7b"])
rows = []
for name in ("laptop-CPU", "T4", "A10", "A100-80GB-SXM", "H200-SXM"):
    sheet = profile.DATASHEET[name]
    there = profile.cost_card(seven, sheet, dtype="bfloat16", prompt=32)
    total = timing.total_latency(there.ttft_floor, there.tpot_floor, 20)
    speed = f"{sheet.bandwidth / 1e9:,.0f}"
    rows.append([name, speed, timing.duration(there.tpot_floor), timing.duration(total)])
show(Table([words["device"], "GB/s", "TPOT (floor)", "20 tokens (floor)"], rows, words["seven_floor"]))

# %% [markdown]
# Seconds for 20 tokens are what a *laptop's memory* allows at 16 bits. On a data-centre GPU the same
# seconds would mean that the software wastes nearly all of the machine. That happens, too; the next two
# sections say where.

# %% [markdown]
# ## 7 · What keeps the device waiting?
#
# A decode loop has two workers: the **host** (Python, which tokenizes, launches kernels, picks tokens,
# sends text) and the **device**, which works through a queue. As long as the queue is never empty, the host
# costs nothing. Below are five requests to the same model, each on its own time scale. In four of them
# something is wrong. Which is which? (What the host does very briefly is drawn a little wider than it is.)

# %%
named = zip("ABCDE", FAULTS, strict=True)
planted = {f"request {letter}": planted_timeline(fault, random.Random(3)) for letter, fault in named}
lanes = (words["host"], words["device_lane"])
widgets.show_figure(timelines(planted, lanes=lanes), words["timelines"])

# %% [markdown]
# Grey is the host *waiting for the device*. It looks guilty, and mostly is not: in the last request the
# host waits most of the time, and the device never rests. Waiting hurts only when the queue runs empty
# **because** the host waited: then the device stands still until the host has woken up and launched again.
#
# **Decide before you go on:** what keeps the device of each request waiting? A gap is to blame on whatever the host
# was doing *when the gap began*, not on the longest event in it. Write a name from the legend, such as `"launch"`;
# where the device itself sets the pace, `"device"`. Blanks are fine.

# %%
guess = {"request A": "", "request B": "", "request C": "", "request D": "", "request E": ""}

# %% [markdown]
# ### Exercise: `find_bottleneck` · extra, 9 minutes
#
# Do not look for the longest event. Look at the device's gaps, and blame each on **what the host was doing when
# the gap began**. (If you leave this one out: the cell below its check prints the answers all the same, and
# they are worked out after it.)


# %% answer="find_bottleneck"
def find_bottleneck(host, device):
    """Name the host activity that keeps the device waiting.

    host:   list of (name, start, stop) [s], one after another without a break, from 0
    device: list of (start, stop) [s] in which the device is busy, in order, not touching each other

    A gap is a time in which the device is not busy: before its first interval (from 0), and between two
    intervals.
    Blame the whole length of a gap on the host event with start <= (beginning of the gap) < stop.

    Returns the name with the most blame; or "device" when all gaps together are less than a tenth of the
    time from 0 to the end of the last interval.
    """
    ### BEGIN SOLUTION
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0  # up to here the device's time is accounted for
    for start, stop in device:
        for name, begin, end in host:
            if begin <= reached < end:
                blame[name] += start - reached
        reached = stop
    if sum(blame.values()) < 0.1 * reached:
        return "device"
    return max(blame, key=blame.get)
    ### END SOLUTION


# %% check="find_bottleneck"
check.find_bottleneck(find_bottleneck)

# %%
find_bottleneck = check.use("find_bottleneck", find_bottleneck)

for name, (host, busy) in planted.items():
    print(f"{name}: {find_bottleneck(host, busy):<12} your guess: {guess[name] or '–'}")

# %% [markdown]
# Read the picture again with the answers:
#
# - **A, tokenize.** One long gap, before the first kernel: the host was still tokenizing. Remedy: tokenize
#   elsewhere or earlier.
# - **B, launch.** A comb: each kernel is over before the next one is launched. Remedy: fewer, larger kernels, or
#   a recorded graph of them (notebook 05).
# - **C, synchronize.** The host waits for each token's number. When the gap begins the queue is empty and the
#   host is still waking up; only then does it sample and launch. Remedy: fetch no number inside the loop.
# - **D, stream.** The kernels of a token run out while the host sends text. Remedy: stream from another thread.
# - **E, device.** No gaps worth the name. Grey everywhere, and nothing wrong with it.
#
# None of A to D is cured by a faster GPU; only E would gain from one.
#
# ### The real thing
#
# `torch.profiler` records the real loop. On a GPU its gaps come with what the host was doing; on a CPU the
# operators are the kernels, and the gaps between them are Python.

# %%
found = profile.trace(profile.decode_steps(lm, PROMPT, 4), lm.device)
print(found.summary())

# %% [markdown]
# Now the distance between a decode step and its floor can be taken apart:

# %%
untraced = found.untraced_gap_share  # on a GPU: kernels take their time whether recorded or not
idle = found.gap_share if untraced is None else untraced
show(tables.step_parts(tpot, decode["floor_ms"] / 1e3, idle))
print(f"{len(found.kernels) / 4:,.0f} operations per token")

# %% [markdown]
# The floor counts bytes. But every operation also has a price of its own, paid in Python (second row) and inside
# the operator (third row) before the first byte moves: some microseconds, hundreds of times per token. On a big
# GPU that is what the device waits for: the loop is *launch-bound*. On a laptop look at the list above. What
# stands there beside `linear`, which reads the weights, is the price of many small operations; and `linear`
# itself may need longer than the bytes of its weights, for a product with a single vector rarely reaches the
# memory's full speed. The price falls with the number of operations: fewer, larger ones (notebook 05).
#
# If `cat` stands high in your list: the plain cache is copied whenever it grows by a token (notebook 04).
#
# `found.export("decode.json")` writes a file for [Perfetto](https://ui.perfetto.dev). For those who have
# NVIDIA's Nsight Systems, this line records the same with its own tools (`labkit` marks its stages with
# NVTX ranges). It is shown, not run:

# %%
print(profile.nsys_command())

# %% [markdown]
# **Does fetching every token to the host hurt?** Each `int(token)` makes the host wait. The same eight
# steps, once fetching every token and once fetching them all at the end, in alternating rounds:


# %%
@torch.inference_mode()
def decode_and_fetch(each, steps=8):
    """Decode `steps` tokens after the prompt's last one; fetch each at once, or all at the end."""
    cache, token, kept = profile.loop.dynamic_cache(lm), last_token, []
    for _ in range(steps):
        token = forward(token, cache).argmax(dim=-1, keepdim=True)
        kept.append(int(token) if each else token)
    return kept if each else torch.cat(kept, dim=1).tolist()


forward, last_token = profile.loop.plain_forward(lm), lm.encode(PROMPT)[:, -1:]
ways = {
    "each token at once": lambda: decode_and_fetch(True),
    "all at the end": lambda: decode_and_fetch(False),
}
for way, measurement in timing.compare(ways, device=lm.device, warmup=1, repeats=5).items():
    print(f"{way:>18}: {measurement}")

# %% [markdown]
# On a CPU there is no queue to run empty, so the two agree. On a GPU look at the gaps first: where a loop
# is launch-bound anyway, fetching costs little *yet*. Once launches are cheap (notebook 05), the same
# `int(token)` becomes the bottleneck. Bottlenecks queue up behind each other.
#
# ### Exercise: `idle_share` · extra, 8 minutes
#
# Timelines of real GPUs have several *streams* whose kernels overlap. What share of a window is the device
# idle?


# %% answer="idle_share"
def idle_share(kernels, start, end):
    """Share of a window in which no stream runs a kernel.

    kernels:    list of (stream, begin, stop) [µs], in any order; kernels of different streams may overlap,
                and some may reach beyond the window or lie outside it. The list may be empty.
    start, end: the window [µs], start < end

    Returns the idle share, between 0 and 1.
    """
    ### BEGIN SOLUTION
    reached, idle = start, 0.0  # the device is accounted for up to `reached`
    for _, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0.0, min(begin, end) - reached)
        reached = max(reached, min(stop, end))
    return (idle + end - reached) / (end - start)
    ### END SOLUTION


# %% check="idle_share"
check.idle_share(idle_share)

# %% [markdown]
# On the trace from above:

# %%
idle_share = check.use("idle_share", idle_share)

spans = [(0, span.start * 1e6, span.end * 1e6) for span in (*found.kernels, *found.copies)]
print(f"idle_share: {idle_share(spans, 0.0, found.seconds * 1e6):.1%}    labkit: {found.gap_share:.1%}")

# %% [markdown]
# ## 8 · How much of the machine do we use?
#
# "35 % GPU utilisation" in a dashboard says that some kernel ran 35 % of the time. For decode, which is
# bound by memory, the honest figure is **model bandwidth utilisation**:
#
# $$
# \text{MBU} = \frac{\text{weight bytes} + \text{KV bytes of all rows}}
# {\text{step time} \cdot \text{peak bandwidth}}
# $$
#
# (Definition after Databricks, 2023. Its sibling for prefill is MFU: the model's FLOPs ÷ time ÷ peak
# FLOP/s.)
#
# ### Exercise: `mbu` · core, 4 minutes
#
# Two traps: in a model with *tied embeddings* the input and the output table are the same tensor, listed
# twice and stored once. And every row of the batch (every request in it) brings its own cache.


# %% answer="mbu"
def mbu(tensors, kv_bytes_per_token, lengths, step_ms, bandwidth_gbs):
    """Model bandwidth utilisation of one decode step.

    tensors:            list of (address, values, bytes per value), the weights that the step reads;
                        entries with the same address are the same memory and are read once
    kv_bytes_per_token: bytes of keys and values cached for one token, all layers together
    lengths:            cached tokens of each row in the batch
    step_ms:            duration of the step [ms]
    bandwidth_gbs:      peak bandwidth [GB/s = 1e9 B/s]

    Returns bytes read per second over peak bandwidth, a fraction.
    """
    ### BEGIN SOLUTION
    weights = sum({address: values * width for address, values, width in tensors}.values())
    read = weights + kv_bytes_per_token * sum(lengths)
    return read / (step_ms / 1e3) / (bandwidth_gbs * 1e9)
    ### END SOLUTION


# %% check="mbu"
check.mbu(mbu)

# %% [markdown]
# Before you look: what share of the memory's bandwidth does the plain loop use?

# %%
predict("MBU of the plain loop", None, "%")

# %%
mbu = check.use("mbu", mbu)

table = lm.model.get_input_embeddings().weight.data_ptr()
only_looked_up = None if card_shape.tied else table  # an input table of its own is not read through
parameters = lm.model.named_parameters(remove_duplicate=False)
tensors = [(p.data_ptr(), p.numel(), p.element_size()) for _, p in parameters if p.data_ptr() != only_looked_up]
used = mbu(tensors, card.kv_bytes_per_token, [card.context], tpot * 1e3, bandwidth)
predict.compare("MBU of the plain loop", 100 * used, "%")

# %% [markdown]
# A small model can show a *flattering* MBU here: what fits into a processor's cache need not come from
# memory, and a figure near or above 100 % says just that. On a big GPU with a 7B the weights fit into no
# cache.

# %% [markdown]
# ## 9 · Predicted against measured
#
# You now have a theory of this service: prefill time grows with the prompt's FLOPs, a decode step's with
# the bytes it reads. Take **one** measurement ($p_0$ = 256 tokens in, $n_0$ = 16 out) as calibration, and
# predict the whole grid from it. $F$ are the FLOPs of the prefill, $B$ the bytes of a decode step, and index 0
# marks the calibrating request. (Measuring the grid takes about half a minute on a laptop.)
#
# $$
# \hat T(p, n) = \text{TTFT}_0 \cdot \frac{F(p)}{F(p_0)}
# + \text{TPOT}_0 \cdot \frac{B(p, n)}{B(p_0, n_0)} \cdot (n-1)
# $$

# %%
text_ids = lm.encode(quality.evaluation_text("fixed")[:8000])
grid = measure_grid(lm, text_ids, ceilings, prompts=(64, 256, 1024), outputs=(2, 8, 16, 32, 64), repeats=2)
cells = [vars(cell) for cell in grid.cells]
known = next(cell for cell in grid.cells if (cell.prompt, cell.output) == (256, 16))


def predicted(prompt, output):
    """Seconds for `output` tokens after `prompt` tokens, from the one calibrating cell."""
    there = profile.cost_card(lm, ceilings, prompt=prompt, context=prompt + output // 2)
    base = profile.cost_card(lm, ceilings, prompt=known.prompt, context=known.prompt + known.output // 2)
    first = known.ttft * there.prefill.flops / base.prefill.flops
    return first + known.tpot * there.decode.bytes / base.decode.bytes * (output - 1)


errors = [abs(predicted(cell.prompt, cell.output) / cell.e2e - 1) for cell in grid.cells]
print(f"median error {statistics.median(errors):.0%}, largest {max(errors):.0%}")


# %%
def draw(prompt, output):
    """The picture at one position of the sliders."""
    return plots.prediction_lines(cells, prompt, output, predicted=predicted)


widgets.explore(draw, words["explore"], prompt=list(grid.prompts), output=list(grid.outputs))

# %% [markdown]
# Where the dashed line leaves the measured points, the theory lacks something. Short prompts cost more than
# their FLOPs, for a pass has a fixed price (launching, Python) however small it is. On a big GPU with a plain
# loop that fixed price can rule everything: then a prompt four times as long takes hardly longer, and the
# prediction is far off. A wrong prediction is a finding, too.
#
# And the distance to the floor, over the whole grid:

# %%
widgets.show_figure(plots.prediction_heat(cells), words["heat"])

# %% [markdown]
# ## 10 · Bug hunt
#
# A snippet like this stands in many a blog post. It runs, and it reports a handsome speed. Run it.


# %%
def tokens_per_second(prompt, new_tokens):
    ids = lm.encode(prompt)
    timing.synchronize(lm.device)
    start = time.perf_counter()
    output = lm.model.generate(
        ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    timing.synchronize(lm.device)
    return len(output[0]) / (time.perf_counter() - start)


tokens_per_second(PROMPT, 2)  # warm-up
reported = max(tokens_per_second(PROMPT, 8) for _ in range(3))
print(f"{reported:,.0f} tokens/s")

# %% [markdown]
# It warms up, it synchronises, it fixes the length, it takes the best of three. Is the number true? You own
# two tools that can tell: the pace you measured yourself, and the roof, for no loop decodes one row faster than
# the memory delivers the weights.

# %%
fastest = ceilings.bandwidth / card.decode.bytes
print(f"reported {reported:,.0f} tokens/s; your pace (1 ÷ TPOT) {1 / tpot:,.0f}, the roof {fastest:,.0f}")
print(f"taken at its word, an MBU of {reported / fastest:.0%}")

# %% [markdown]
# A speed far beyond your own pace, let alone beyond the roof, is not a record, it is a bug. Find it before you
# read on.
#
# <details><summary>What is wrong?</summary>
#
# `generate` returns the prompt *and* the answer, so `len(output[0])` counts every prompt token as if it had
# been generated. The longer the prompt, the "faster" the model. Only the new tokens count, and, if you mean
# the pace of decoding, only the time after the first one.
#
# </details>
#
# Repaired:


# %%
def new_tokens_per_second(prompt, new_tokens):
    ids = lm.encode(prompt)
    timing.synchronize(lm.device)
    start = time.perf_counter()
    output = lm.model.generate(
        ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    timing.synchronize(lm.device)
    return (output.shape[1] - ids.shape[1]) / (time.perf_counter() - start)


true_speed = max(new_tokens_per_second(PROMPT, 8) for _ in range(3))
print(f"{true_speed:,.1f} tokens/s, {reported / true_speed:,.0f} times less than reported")

# %% [markdown]
# That is below your own pace because it is another question: here the prompt's prefill is paid too, and spread
# over eight tokens only.
#
# ## 11 · The same on a big GPU
#
# What you measured, beside a recorded run of `labcoder@7b` on an H200. Its last figure is a control: the
# same shape with fully random weights must take just as long, or the blown-up model would be flattering the
# hardware.

# %%
here = tables.Baseline(
    model=lm.name,
    prompt_tokens=prompt_tokens,
    new_tokens=report.new_tokens,
    ttft=ttft,
    tpot=tpot,
    tokens_per_second=report.tokens_per_second,
    mbu=used,
    idle=idle,
    waiting=found.causes()["waiting"] / found.seconds,
    ridge=ceilings.ridge,
    stages=stages.shares,
    ttft_floor=card.ttft_floor,
    tpot_floor=card.tpot_floor,
    parameters=card.parameters,
)
show(tables.beside_record(here, h200))

# %% [markdown]
# ## 12 · The first rung
#
# The service as it is today: a plain model in a plain loop.

# %%
ledger.add(
    "plain model",
    model=lm.name,
    device=results.device_name(str(lm.device)),
    notebook="01_profile",
    ttft=ttft,
    tpot=tpot,
    throughput=report.tokens_per_second,
    memory=card.weight_bytes + card.kv_bytes,
)
ledger.show()

# %% [markdown]
# Does it meet the target? Here, and on the recorded GPU:

# %%
show(tables.target(here, h200))

# %% [markdown]
# What is missing is the factor in the verdict; the rows *at their floor* say how much of it can be won. Where the
# floors lie within the target, this model on this machine could meet it, and what stands in the way is waste:
# section 7 says where. Where a floor lies beyond it, no program can help: the model must cost less, or the
# machine be another. On the recorded GPU the floors lie within, and the device idles most of the time: a faster
# host, or less for it to do, is what is missing there. And all of this is *one* request: nobody has asked yet
# what happens when a hundred people type at once.

# %% [markdown]
# ## Claims checked
#
# What articles say, what you measured, and what was recorded:

# %%
show(tables.claims(here, h200))

# %% [markdown]
# **Why they differ**
#
# - *The latency law* (1) is exact: it is how TPOT is defined. The shares are right for 40 ms and 5 ms and
#   for nothing else; put in your own TTFT and TPOT.
# - *20 tokens* (2): that people feel 200 ms and leave at a second is taken from the literature, not
#   measured here. The *3–5 s* need a condition: they are what 16-bit weights cost on a laptop's memory. A
#   data-centre GPU that takes this long is badly fed.
# - *The five stages* (3): wrong as a rule. In a warm decode loop the forward pass takes nearly everything.
#   Sampling looks large where the host runs ahead of the GPU and the clock does not wait at the borders (it
#   then pays for the forward pass), and compilation is a share of the first request only.
# - *650 operations per byte* (4) divides a sparse peak by a rounded bandwidth. The dense datasheet ridge is
#   less than half of it; a measured ridge may be higher or lower, for peak and bandwidth fall short of their
#   promises by different amounts.
# - *Gaps are visible* (4a): true, with Nsight Systems or the portable `torch.profiler`. Recording slows the
#   host down and widens them, so on a GPU the share is taken against an untraced run.
# - *Synchronising stalls the pipeline* (5): true when the queue would otherwise be full. In a
#   launch-bound loop the device idles with or without it, and on a CPU there is no queue.

# %% [markdown]
# ## Common misconceptions
#
# - *"GPU utilisation is high, so the GPU is busy."* It says that some kernel ran. A decode step at 20 % MBU
#   shows up as 100 %.
# - *"Synchronising is slow, so leave it out when timing."* Then you time the launches.
# - *"More TFLOP/s make decoding faster."* Below the ridge only bytes count: fewer of them, or more
#   bandwidth.
# - *"TPOT is the mean of ITL, so one of them is enough."* The mean hides the one gap of 300 ms that
#   everybody notices.
# - *"The profiler shows the real times."* It shows real proportions, in slow motion.

# %% [markdown]
# ## Interview questions
#
# <details><summary>A decode step of a 7B model in 16 bits takes 20 ms on a GPU with 2 TB/s. Is that good?</summary>
#
# The step reads about 14 GB of weights, so at best 14 GB ÷ 2 TB/s = 7 ms: an MBU of 35 %. There is room.
# Next question: is the device idle between kernels (launch-bound), or are the kernels themselves slow? A
# timeline tells.
#
# </details>
# <details><summary>Why is prefill of 500 tokens not 500 times as long as a decode step?</summary>
#
# Both read the weights once. Decode does so for one token and waits for memory; prefill shares the reading
# among all tokens until the arithmetic becomes the limit (right of the ridge).
#
# </details>
# <details><summary>A colleague's benchmark shows sampling at 40 % of the step. What do you ask first?</summary>
#
# Whether the clock waited before sampling began. If not, sampling is merely the first to need the logits
# and waits for the whole forward pass.
#
# </details>
# <details><summary>Can MBU exceed 100 %?</summary>
#
# Not honestly. If it does: bytes were counted twice (tied embeddings), the weights partly sit in a cache,
# the bandwidth is too low, or the time is wrong (no synchronisation, prompt tokens counted as output).
#
# </details>
# <details><summary>TTFT doubled overnight, TPOT did not. Where do you look?</summary>
#
# Before and in prefill: longer prompts, a queue in front of the model, a cold cache or tokenizer, a
# recompilation for new shapes. Decode is innocent.
#
# </details>

# %% [markdown]
# **Where this is used.** vLLM, SGLang and TensorRT-LLM report TTFT, TPOT and ITL in their benchmarks; check
# how each defines them. Cost cards like yours decide which GPU is bought. Nsight Systems and Perfetto are
# where performance engineers spend their mornings.
#
# **What next.** Look once more at what section 6 said about your decode step. Near its floor, it waits for
# bytes. At several times its floor, as on the recorded GPU, overhead comes first, which notebook 05 cures; then
# the bytes remain. So the next notebook, `02_compress`, makes them fewer: it lowers the floor itself.

# %%
progress.show("01_profile")
