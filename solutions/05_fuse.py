# %% [markdown]
# # 05 · A shorter walk between stations
#
# The service batches, and its cache is paged. Yet a step of the 7B takes about as long with one row as with a
# hundred, and many times as long as reading its weights. Neither the memory nor the arithmetic of the GPU is
# what we wait for.
#
# Watch a cook who does everything right and is slow. He takes the pan from the shelf, stirs once, puts it back
# on the shelf, and looks up the next line of the recipe. Then he takes the pan from the shelf. A model's layer
# is dozens of such lines, and each is a **kernel**: a program for the device, which fetches its numbers from memory
# and puts its results back there. **Fusion** does several lines while the pan is in the hand. A **CUDA graph** learns
# the whole recipe by heart, so that nobody reads it out line by line.
#
# **After this notebook you can**
#
# - say what a speedup of a part does for the whole, and what it never can (Amdahl's law),
# - count the bytes that an operation moves, fused and unfused, and predict when it matters,
# - write a fused kernel in Triton, and see what each of its programs reads and writes,
# - explain how fused attention gets along without ever storing its scores (online softmax),
# - merge projections, and say what may and may not go into a CUDA graph,
# - read a ladder of speedups, with the share of the memory ceiling on every rung.
#
# **You need** notebook 01 (kernels and launches, the floor, the roofline). Section 1 borrows
# the paged cache of notebook 04 and section 8 the engine of 03, but not their exercises. No GPU, no network. Every term
# is in [docs/glossary.md](../docs/glossary.md).
#
# **How long it takes.** Writing the core exercises about 25 minutes; with reading and measuring about an hour
# and a half. Exercises marked *extra* can wait.
#
# **Run cells one at a time** (Shift+Enter): *Run All* stops at the first exercise that is not done yet. Stuck?
# `check.hint("speedup")`. Later cells never depend on your answer. Run this first cell; you need not read it.

# %% role="setup"
import math
import statistics
from functools import partial
from types import SimpleNamespace

import torch
from transformers import StaticCache

try:
    import triton
    import triton.language as tl
except ImportError:  # there is none for macOS and Windows; what needs it says so
    from labkit.course.no_triton import tl, triton

import labkit
from labkit import fuse, profile, quality, results, timing
from labkit.batch.bench import release
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.batch.rungs import RUNGS, standing
from labkit.batch.workload import workload
from labkit.cache.attention import install, remove
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import PagedCache, token_bytes
from labkit.course import check, interpreted, ledger, predict, progress, show, texts, widgets
from labkit.course.plots import fuse as plots
from labkit.course.tables import fuse as tables
from labkit.course.tables import fuse_record as records
from labkit.course.tape import Tape
from labkit.errors import LabkitError
from labkit.fuse import arithmetic, onnx
from labkit.models import PRESETS, inflated_config

words = texts.words("05_fuse")

# %% [markdown]
# The ledger so far. On the recorded GPU, compare *TPOT* of the rungs up to notebook 04: batching and caching save
# work, and have touched it little.

# %%
ledger.show()

# %% [markdown]
# The exercises of this notebook, with their minutes of writing:

# %%
progress.show("05_fuse")

# %%
lm = labkit.load()
on_gpu = lm.device.type == "cuda"
text = lm.encode(quality.evaluation_text("fixed"))[0].tolist()
h200, profiled = results.load("fuse"), results.load("profile")
print(f"{lm.name} in {lm.dtype} on {lm.device}")
if h200 is None:
    print(words["not_recorded"])

# %% [markdown]
# ## 1 · Where does a token's time go?
#
# Notebook 01 recorded one token of the 7B on an H200. *Floor* means what no program can beat: every weight is
# read once, at the bandwidth that was measured.

# %%
parts = tables.Parts.of_record(profiled)
show(tables.wait(parts, profiled))
batched = results.load("batch")["figures"]["decode_step"]  # rows → seconds
print(
    "a decode step of 1 row through the engine:",
    timing.duration(batched["1"]),
    "· of 256:",
    timing.duration(batched["256"]),
)

# %% [markdown]
# Read it from the bottom. Most of the time **no kernel runs at all**: the device waits until Python has
# launched the next one. That is why a step takes about as long with one row as with many. (How fast Python launches
# differs from run to run and from loop to loop: the ledger's tokens and the engine's steps, in other runs, were
# faster than this one. The kernels take what they take.) And of the time in
# which kernels run, a part goes to kernels that are no matrix product: norms, rotary positions, SiLU, additions,
# copies. They read hardly any weights. What are they doing?
#
# A step of *your* model shows it. (On a processor torch's **operators** are what kernels are on a GPU. They
# run when Python calls them, so that the gap between two of them is Python.) labcoder has 4 layers, the 7B has 32.
# How many operators, or kernels, does one decode step run?

# %%
predict("kernels in one step", None, "")

# %%
install(lm.model)  # attention over the paged cache of notebook 04
cache = PagedCache(lm, blocks=32, block_size=16, share=False)
with torch.inference_mode():
    cache.open(0, text[:200])
    forward(lm, cache.pack([Chunk(0, 0, text[:200])]))
    cache.commit(0, text[:200])
pack = cache.pack([Chunk(0, 200, text[200:201])])  # the input of one decode step, the same each time


@torch.inference_mode()
def step():
    """One decode step of one row, to its logits."""
    return forward(lm, pack)


before = profile.trace(step, lm.device)
predict.compare("kernels in one step", len(before.kernels), "")
print(f"nothing runs for {before.gap_share:.0%} of the traced time (tracing widens the gaps)")

# %%
layers = lm.config.num_hidden_layers


def one_layer(found):
    """A layer's worth of a step, from one attention to the next."""
    return plots.one_layer(found.kernels, layers, found.seconds)


widgets.show_figure(
    plots.kernels({f"{lm.name}, one layer of {layers}": one_layer(before)}), words["kernels_before"]
)

# %% [markdown]
# The dark blue bars are the recipe: matrix products with the weights. Everything else is the walk between
# stations. Look at how many there are, and how narrow: each is short, and each pays for a launch, a trip to memory
# and a trip back.
#
# So there are three candidates: the gaps, the small kernels, the matrix products. Which one first?

# %% [markdown]
# ## 2 · What a part can do for the whole

# %% [markdown]
# ### Exercise: `speedup` · core, 3 minutes
#
# A step consists of parts, and each part becomes faster by a factor of its own. What is in none of them stays as
# it was. How many times faster is the step? (Think in *time*: what is each part's share afterwards?)


# %% answer="speedup"
def speedup(shares, factors):
    """How many times faster a step is when some of its parts are.

    shares:  each part's share of the step's time before, 0 to 1; together at most 1, the rest stays as it is
    factors: how many times faster each part has become; below 1 it is slower, math.inf means it takes no time

    Returns the time of the step before ÷ its time after, a number.
    """
    ### BEGIN SOLUTION
    rest = 1 - sum(shares)
    after = rest + sum(share / factor for share, factor in zip(shares, factors, strict=True))
    return 1 / after
    ### END SOLUTION


# %% check="speedup"
check.speedup(speedup)

# %% [markdown]
# Your function, on the H200's token. What would each remedy gain? (*No time* is an infinite factor,
# `math.inf`.)

# %%
speedup = check.use("speedup", speedup)

shares = parts.shares
print("of the recorded token:", ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
gap, product, other = shares["gaps"], shares["matrix products"], shares["other kernels"]
gains = {
    "fused_away": speedup([other], [math.inf]),
    "products_twice": speedup([product], [2]),
    "no_gaps": speedup([gap], [math.inf]),
    "all_three": speedup([other, product, gap], [math.inf, 2, math.inf]),
}
show(tables.scenarios(gains))

# %%
widgets.show_figure(plots.amdahl(shares), words["amdahl"])

# %% [markdown]
# **Amdahl's law.** A line cannot rise above its dotted bound, however good the work on that part is:
#
# $$\text{bound} = \frac{1}{1 - \text{share}}$$
#
# So the order is decided before anybody writes a kernel. The gaps come first. And the law has a second half: once
# the gaps are gone, the shares are *new* ones. What was a few per cent of a slow token is a large part of a fast
# one:

# %%
left = 1 - gap
print(f"with the gaps:    other kernels {other:.0%} of a token, at most {speedup([other], [math.inf]):.2f} ×")
print(
    f"without the gaps: other kernels {other / left:.0%}, at most {speedup([other / left], [math.inf]):.2f} ×"
)

# %% [markdown]
# That is why fusion and graphs go together. Fusion makes the recipe shorter (fewer launches *and* fewer
# trips to memory), the graph reads it out at once. We begin with fusion, since it is the idea; section 7 comes
# to the gaps.

# %% [markdown]
# ## 3 · Bytes that nobody asked for

# %% [markdown]
# ### Exercise: `norm_bytes` · extra, 5 minutes
#
# Between its attention and its MLP a layer adds what the attention found to the residual stream, and normalises
# the sum for the MLP. As two kernels:
#
# 1. *add*: reads `x` and `residual`, writes `summed`;
# 2. *norm*: reads `summed` and `weight`, writes `normed`.
#
# The fused kernel does both in one pass: a number that it has just computed is still in its registers. It must
# write `summed` as well, because the next addition needs it. Count the bytes between memory and processor, each
# array once for each kernel that reads or writes it.


# %% answer="norm_bytes"
def norm_bytes(tokens, hidden, element, fused):
    """Bytes moved by a residual addition and the RMSNorm after it.

    tokens, hidden: x, residual, summed and normed are [tokens, hidden] each; weight is [hidden]
    element:        bytes of one number, in all five
    fused:          False: two kernels, add and norm. True: one kernel, which reads x, residual and weight and
                    writes summed and normed

    Every kernel reads each of its inputs from memory once and writes each of its results once; nothing stays in
    a cache from one kernel to the next.
    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    state = tokens * hidden  # numbers in x, and in residual, summed, normed
    if fused:
        numbers = state + state + hidden + state + state  # x, residual, weight; summed, normed
    else:
        numbers = (state + state + state) + (state + hidden + state)  # add; norm, which reads summed again
    return numbers * element
    ### END SOLUTION


# %% check="norm_bytes"
check.norm_bytes(norm_bytes)

# %% [markdown]
# Your count beside what labkit's kernel really asks of memory, load by load. `interpreted.traffic` runs a kernel in
# Triton's interpreter, one program after the other on the CPU, and takes down every address.

# %%
norm_bytes = check.use("norm_bytes", norm_bytes)

tokens, hidden = 6, 40
if interpreted.available():
    from labkit.kernels.rms_norm_triton import rms_norm_kernel

    x, residual, summed, normed = (torch.randn(tokens, hidden) for _ in range(4))
    moved = interpreted.traffic(
        rms_norm_kernel,
        (tokens,),
        (x, residual, torch.ones(hidden), normed, summed, 1e-6),
        {"HIDDEN": hidden, "BLOCK": 64, "OFFSET": 0.0, "WIDE": False, "PDL": False},
    )
    own = {"x": "x", "add": "residual", "weight": "weight", "normed": "normed", "summed": "summed"}
    print("read:   ", {own[name]: count for name, count in moved.read.items() if count})
    print("written:", {own[name]: count for name, count in moved.written.items() if count})
    print(f"{moved.total:,} B in all; norm_bytes says {norm_bytes(tokens, hidden, 4, True):,} B")
# (weight: each program, that is each token, reads it again. On a GPU all but the first find it in the cache.)

# %% [markdown]
# One norm of an 8B in 16 bits, for a decode step of one row and for a prompt of 2,048 tokens:

# %%
small = labkit.load("labcoder").config
seven, eight = (profile.shape_of(inflated_config(small, PRESETS[size])) for size in ("7b", "8b"))
sizes = {
    tokens: (norm_bytes(tokens, eight.hidden, 2, False), norm_bytes(tokens, eight.hidden, 2, True))
    for tokens in (1, 2048)
}
show(tables.norm(sizes, arithmetic.layer_weights(eight, 2)))

# %% [markdown]
# Compare them with the last column. With one token the norm's bytes are nothing beside the weights, fused or not: what
# fusion saves there is **launches**. With a long prompt they are a part of the whole: there it saves
# **bytes**. (And the exercise was kind to the unfused side. transformers writes its RMSNorm as about seven
# operations, each with a result of its own in memory.)
#
# All operations of a layer that fusion changes, under the slider. Attention is the extreme case: unfused, it
# writes a score for each pair of tokens, reads it, writes a weight and reads that.

# %%
LENGTHS = (1, 16, 128, 512, 2048, 8192)


def draw(tokens):
    """Bytes of one layer at one position of the slider."""
    traffic, weights = arithmetic.layer_traffic(eight, tokens, 2), arithmetic.layer_weights(eight, 2)
    title = tables.moved_title(tokens, traffic, weights)
    return plots.moved(traffic, weights, title, [words[key] for key in ("unfused", "fused", "weights")])


widgets.explore(draw, words["moved"], start={"tokens": 2048}, tokens=LENGTHS)

# %% [markdown]
# Fewer bytes for the same arithmetic: the **arithmetic intensity** of notebook 01 rises. Under the roofline
# that is a move to the right, and on the slope a move to the right is a move up. Hollow: unfused. Filled: fused.

# %%
ceilings = profile.Ceilings(**profiled["figures"]["ceilings"]["measured"])
moves = [
    plots.Move(one.name, one.flops, one.unfused, one.fused)
    for one in arithmetic.layer_traffic(eight, 2048, 2)
]
widgets.show_figure(plots.moves(moves, ceilings), words["moves"])

# %% [markdown]
# Small operations stay on the slope: fused, they are faster and still bound by memory. Attention crosses the
# ridge. It has *enough* arithmetic, but unfused code drowned it in bytes. (The picture is arithmetic on the
# H200's measured ceilings, not a measurement: what the roof allows at each point.)
#
# Does it hold on a real machine? A sibling of RMSNorm, LayerNorm, is one kernel in torch on every device; spelled
# out, it is eight operations:

# %%
scale = torch.rand(4096, device=lm.device)


def spelled_out(x):
    """LayerNorm as its formula reads, an operation at a time."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * scale


def one_kernel(x):
    """The same by torch's own kernel."""
    return torch.nn.functional.layer_norm(x, (4096,), scale)


for tokens in (1, 2048):
    x = torch.randn(tokens, 4096, device=lm.device)
    both = timing.compare(
        {"apart": spelled_out, "one": one_kernel}, device=lm.device, inputs=[(x,)], repeats=9
    )
    apart, one = both["apart"].median, both["one"].median
    print(f"{tokens:5} tokens: {timing.duration(apart)} → {timing.duration(one)}, {apart / one:.1f} ×")

# %% [markdown]
# With one token the gain is fewer calls; with many it is fewer trips. Two different savings, and both are
# called fusion.

# %% [markdown]
# ## 4 · Your first fused kernel
#
# The MLP of a Llama computes $\operatorname{silu}(\text{gate}) \cdot \text{up}$ with
# $\operatorname{silu}(x) = x / (1 + e^{-x})$. In torch that is two operations: one writes silu(gate) to
# memory, the other reads it back. Three numbers a result would do: read gate, read up, write the product.
#
# **Triton** is Python for such kernels. What stands on a line is done for a whole tile of numbers at once, and names
# in capitals are known when the kernel is compiled. On a GPU Triton compiles; on a processor its **interpreter**
# runs the same lines, a program at a time. It is slow, and its time says nothing about a GPU. But it tells
# something else: exactly which bytes your kernel touches. (Triton exists for Linux. Elsewhere this section's
# cells say so, and its exercises count as open.)

# %% [markdown]
# ### Exercise: `silu_mul` · core, 10 minutes
#
# Gate and up come from one merged projection, side by side in one row. A **program** computes one *tile*: `TILE`
# neighbouring results of one row. All programs run the same lines; `tl.program_id` tells them apart. `gate_up`
# and `out` are *pointers*, the addresses of the first numbers, so
# `gate_up + 3` is where the fourth one lies, and `gate_up + column` is a whole tile of addresses.
#
# Rows need not be a multiple of `TILE`. `tl.load(addresses, mask=…, other=0.0)` and
# `tl.store(addresses, values, mask=…)` leave out the places where the mask is False. `tl.exp` is the exponential of
# every number in a tile.


# %% answer="silu_mul"
@triton.jit
def silu_mul(gate_up, out, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    """out = silu(gate) · up, for one tile of one row.

    gate_up: pointer to [rows, 2 · COLUMNS], one row after the other; in each row first COLUMNS gates, then
             COLUMNS ups
    out:     pointer to [rows, COLUMNS]
    COLUMNS: results in a row
    TILE:    results of one program, a power of 2

    Launched with one program for each row and each tile of it: grid (rows, ⌈COLUMNS / TILE⌉). Computes in float32
    (.to(tl.float32)) and rounds once, in the store, to the type of out. Reads gate and up once, and nothing else.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)  # TILE numbers: which results of the row are mine
    ### BEGIN SOLUTION
    inside = column < COLUMNS  # the last tile of a row may reach beyond it
    first = gate_up + row * 2 * COLUMNS
    gate = tl.load(first + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(first + COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + column, gate / (1 + tl.exp(-gate)) * up, mask=inside)
    ### END SOLUTION


# %% check="silu_mul"
check.silu_mul(silu_mul)

# %% [markdown]
# What does it touch? A small case under the interpreter: 4 rows of 700 results, tiles of 256. Each byte that
# a program loads or stores is counted:

# %%
silu_mul = check.use("silu_mul", silu_mul)

rows, columns, tile = 4, 700, 256
grid = (rows, triton.cdiv(columns, tile))
if interpreted.available():
    gate_up, out = 3 * torch.randn(rows, 2 * columns), torch.full((rows, columns), math.nan)
    interpreted.launch(silu_mul, grid, gate_up, out, COLUMNS=columns, TILE=tile)
    gate, up = gate_up.chunk(2, -1)
    print(f"largest difference from torch: {(torch.nn.functional.silu(gate) * up - out).abs().max():.1e}")
    moved = interpreted.traffic(silu_mul, grid, (gate_up, out), {"COLUMNS": columns, "TILE": tile})
    show(tables.touched(moved.read, moved.written, {"gate_up": gate_up.nbytes, "out": out.nbytes}))

# %%
if interpreted.available():
    written = {each.program: each.places for each in moved.tiles["out"]}
    widgets.show_figure(plots.tiles(written, rows, columns, tile), words["tiles"])

# %% [markdown]
# Each input is read once, each result written once, and nothing else is moved: no kernel can do with less.
# The last program of a row has fewer columns than its tile. Without the mask its loads would run on into
# numbers of others, and its stores over the next row's results.
#
# On a GPU the same kernel is compiled, and its time means something:

# %%
if on_gpu and interpreted.available():
    wide = torch.randn(2048, 2 * 11008, device=lm.device, dtype=lm.dtype)
    result = torch.empty(2048, 11008, device=lm.device, dtype=lm.dtype)

    def in_torch():
        """Two operations."""
        first, second = wide.chunk(2, -1)
        return torch.nn.functional.silu(first) * second

    def mine():
        """One kernel."""
        silu_mul[2048, math.ceil(11008 / 1024)](wide, result, COLUMNS=11008, TILE=1024)

    both = timing.compare({"torch": in_torch, "yours": mine}, device=lm.device)
    for name, one in both.items():
        size = arithmetic.gated_bytes(2048, 11008, lm.dtype.itemsize, fused=name == "yours")
        print(f"{name:>6}: {timing.duration(one.median)}, {size / one.median / 1e12:.2f} TB/s")
else:
    print("No GPU here, so no time: the interpreter's would mislead.")

# %% [markdown]
# ## 5 · Attention without a table of scores
#
# What kept attention from being fused? Softmax. It divides by a sum over *all* scores, and subtracts their
# maximum, so it seems that all of them must be there before the first weight is known. They need not be.

# %% [markdown]
# ### Exercise: `online_softmax` · core, 8 minutes
#
# A softmax needs the largest score (else exponentials overflow) and the sum of all exponentials. Read the scores
# twice, then? Not if the sum can be corrected afterwards. Keep the largest score seen so far and the sum relative
# to it; when a later tile holds a larger one, the old sum is too large by a factor that you know:
#
# $$\sum_i e^{s_i - m_{new}} = e^{m_{old} - m_{new}} \sum_i e^{s_i - m_{old}}$$
#
# The loop is there; write what happens to `top` and `total` in one round. Masked scores are −∞, and a whole tile
# of them is nothing unusual: `torch.exp(-inf - (-inf))` is NaN.


# %% answer="online_softmax"
def online_softmax(scores, tile):
    """The largest score and the sum of exponentials of each row, tile by tile, each tile seen once.

    scores: tensor [rows, n] of any numbers, −inf where masked
    tile:   scores of a row in one tile; the last one may have fewer

    Returns (tops, totals), each [rows, number of tiles]: after each tile, the largest score of the row so far, and
    Σ exp(score − that largest) over the row so far. While a row has had nothing but −inf: −inf and 0.
    """
    top = torch.full_like(scores[:, 0], -math.inf)  # [rows], so far
    total = torch.zeros_like(top)  # [rows], so far
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):  # part: [rows, tile]
        ### BEGIN SOLUTION
        higher = torch.maximum(top, part.amax(dim=-1))
        shift = torch.where(higher == -math.inf, 0.0, higher)  # −inf − (−inf) is NaN; −inf − 0 is not
        total = total * torch.exp(top - shift) + torch.exp(part - shift[:, None]).sum(dim=-1)
        top = higher
        ### END SOLUTION
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)


# %% check="online_softmax"
check.online_softmax(online_softmax)

# %%
online_softmax = check.use("online_softmax", online_softmax)

scores = 3 * torch.randn(1, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
tops, totals = online_softmax(scores, 8)
for number, (top, total) in enumerate(zip(tops[0].tolist(), totals[0].tolist(), strict=True), 1):
    print(f"after tile {number}: largest {top:6.3f}, sum {total:.3f}")
probabilities = torch.exp(scores - tops[:, -1:]) / totals[:, -1:]
print(f"largest difference from torch.softmax: {(probabilities - scores.softmax(-1)).abs().max():.1e}")

# %% [markdown]
# The values are mixed in the same way: a running mixture, scaled down whenever the maximum rises. So a program
# can walk over keys and values tile by tile, with one tile of scores in its hands, and **never write a score to
# memory**. That is FlashAttention, and paged decoding is the same with blocks for tiles.
#
# This one you can measure anywhere, for torch has both forms on every device. Attention over a prompt, in one layer:
# the plain formula, and torch's fused kernel. How many times faster is the fused one at 1,024
# tokens?

# %%
predict("fused attention at 1,024 tokens", None, "×")


# %%
def in_parts(q, k, v):
    """Scores, mask, softmax and mixture, each in memory."""
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def in_one(q, k, v):
    """torch's fused attention."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


lengths = (256, 512, 1024, 2048, 4096) if on_gpu else (256, 512, 1024, 2048)
attention = {words["scores_apart"]: [], words["scores_fused"]: []}
for length in lengths:
    qkv = torch.randn(3, 1, 32 if on_gpu else 8, length, 64, device=lm.device, dtype=lm.dtype).unbind()
    timed = timing.compare(
        {"parts": in_parts, "one": in_one}, device=lm.device, inputs=[qkv], warmup=1, repeats=3
    )
    for line, one in zip(attention.values(), timed.values(), strict=True):
        line.append(one.median)
attention_gain = [apart / one for apart, one in zip(*attention.values(), strict=True)]
predict.compare("fused attention at 1,024 tokens", attention_gain[lengths.index(1024)], "×")
widgets.show_figure(plots.attention(lengths, attention), words["attention"])

# %% [markdown]
# On a laptop's processor the scores of a short prompt fit into its cache, and the two lie close together: there was
# no trip to memory to save. (A GPU gains even there: one launch instead of five.) The longer the prompt, the further
# apart. The fused kernel has a second advantage: it skips tiles that the causal mask hides altogether, half of the
# work.
#
# A claim says "a fused attention kernel is at least 40 % faster". You see that it depends on the length.

# %% [markdown]
# ### Exercise: `tile_attention` · extra, 25 minutes
#
# FlashAttention in one page. A program owns `TILE` queries and walks over the keys and values tile by tile, with the
# online softmax from above; the scores never exist as a whole. Beside `top` and `total` it carries `mixed`, the
# values mixed so far, which needs the same correction. Causal: query *i* sees the keys 0 … *i*, so the walk ends
# at the program's own tile.
#
# What you need: `tl.dot(a, b)` (both float32 here, for the interpreter cannot multiply bf16), `tl.trans`, `tl.exp`,
# `tl.where`, `tl.maximum`, `tl.max(x, 1)` and `tl.sum(x, 1)` over an axis, `tl.full([TILE], value, tl.float32)`,
# `tl.zeros([TILE, DIM], tl.float32)`. A tile of addresses in two axes: `q + query[:, None] * DIM + column[None, :]`.


# %% answer="tile_attention"
@triton.jit
def tile_attention(q, k, v, out, tokens, scale, DIM: tl.constexpr, TILE: tl.constexpr):
    """Causal attention of one head, for one tile of queries.

    q, k, v, out: pointers to [tokens, DIM] float32, one row after the other; out is written
    tokens:       how many there are; the last tile may be ragged
    scale:        what query · key is multiplied by
    DIM, TILE:    numbers in a row, queries of one program and keys of one round; powers of 2, at least 16

    Launched with one program for each tile of queries: grid (⌈tokens / TILE⌉,). A program reads no keys of tiles
    after its own.
    """
    place = tl.arange(0, TILE)
    column = tl.arange(0, DIM)
    query = tl.program_id(0) * TILE + place  # my queries
    ### BEGIN SOLUTION
    rows = query[:, None] * DIM + column[None, :]
    there = query[:, None] < tokens
    mine = tl.load(q + rows, mask=there, other=0.0)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * TILE, TILE):  # no tile after my own
        key = start + place
        given = key[:, None] < tokens
        keys = tl.load(k + key[:, None] * DIM + column[None, :], mask=given, other=0.0)
        values = tl.load(v + key[:, None] * DIM + column[None, :], mask=given, other=0.0)
        scores = tl.dot(mine, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(key[None, :] <= query[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        old = tl.exp(top - higher)  # 0 in the first round; key 0 is never masked, so no −inf − (−inf)
        weights = tl.exp(scores - higher[:, None])
        total = total * old + tl.sum(weights, 1)
        mixed = mixed * old[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = higher
    tl.store(out + rows, mixed / total[:, None], mask=there)
    ### END SOLUTION


# %% check="tile_attention"
check.tile_attention(tile_attention)

# %%
tile_attention = check.use("tile_attention", tile_attention)

tokens, dim = 128, 16
if interpreted.available():
    q, k, v, out = (torch.randn(tokens, dim) for _ in range(4))
    arguments = (q, k, v, out, tokens, dim**-0.5)
    moved = interpreted.traffic(
        tile_attention, (triton.cdiv(tokens, 16),), arguments, {"DIM": dim, "TILE": 16}
    )
    print("read:", {name: f"{count:,} B" for name, count in moved.read.items() if count})
    print(f"in all, with out: {moved.total:,} B")
    print(f"the scores alone, written and read once as a tensor: {2 * tokens * tokens * 4:,} B")

# %% [markdown]
# ## 6 · Three products, or one
#
# Not every fusion is a clever kernel. Query, key and value are three products of the *same* input with three
# weights. Laid on top of one another, they are one product: the input is read once, and two launches are saved.
# The MLP's gate and up are merged likewise.

# %% [markdown]
# ### Exercise: `merge_qkv` · core, 3 minutes
#
# A linear layer computes $x W^T$: each *row* of $W$ makes one number of the result. With GQA there are fewer rows for
# keys and values than for queries.


# %% answer="merge_qkv"
def merge_qkv(q, k, v):
    """Three projections of one input as one.

    q:    weight [query heads · head_dim, hidden]
    k, v: weights [KV heads · head_dim, hidden]; fewer rows than q with grouped-query attention

    Returns (weight, sizes): the merged weight, and a list of three whole numbers such that
    (x @ weight.T).split(sizes, dim=-1) gives the queries, keys and values that q, k and v would.
    """
    ### BEGIN SOLUTION
    weight = torch.cat([q, k, v], dim=0)
    return weight, [q.shape[0], k.shape[0], v.shape[0]]
    ### END SOLUTION


# %% check="merge_qkv"
check.merge_qkv(merge_qkv)

# %% [markdown]
# Three narrow weights against one, for one row and for 64. (Both ways read the same weights. On a GPU they have the
# shape of an 8B's.)

# %%
merge_qkv = check.use("merge_qkv", merge_qkv)

noise = torch.Generator().manual_seed(2)
width, heads, kv = (4096, 4096, 1024) if on_gpu else (1024, 1024, 256)
q, k, v = (
    (torch.randn(rows, width, generator=noise) / 32).to(lm.device, lm.dtype) for rows in (heads, kv, kv)
)
weight, split = merge_qkv(q, k, v)
for rows in (1, 64):
    x = torch.randn(rows, width, generator=noise).to(lm.device, lm.dtype)

    def three(x):
        """Three products."""
        return x @ q.T, x @ k.T, x @ v.T

    def merged(x):
        """One, and its result taken apart (which copies nothing)."""
        return (x @ weight.T).split(split, -1)

    both = timing.compare({"three": three, "one": merged}, device=lm.device, inputs=[(x,)], repeats=15)
    off = max((a - b).abs().max().item() for a, b in zip(three(x), merged(x), strict=True))
    first, second = both["three"].median, both["one"].median
    print(
        f"{rows:2} rows: {timing.duration(first)} → {timing.duration(second)} ({first / second:.2f} ×), off {off:.0e}"
    )

# %% [markdown]
# On a processor there is little to gain: it pays hardly anything for a launch, and a small product may even
# split its work less well when it is merged. On a GPU one row's products are so short that three launches are
# three waits, and a larger product keeps more of the processors busy. (GQA makes K and V narrow: alone, they
# occupy a fraction of the GPU.)
#
# **On a whole model.** `labkit.fuse.apply` reads the code of the model's layers, recognises what they do, and
# replaces what it knows; what it does not know stays as it is, and the report says so. The merged weight owns
# the memory, and the old weights become views of it, so that nothing is stored twice.

# %%
report = fuse.apply(lm)
print(report)
for name, what in fuse.parts().items():
    print(f"{name:>9}: {what}")

# %% [markdown]
# Each part alone, and all together, on the decode step of section 1. The last column is what must hold: the
# model says the same. (In 16 bits the last digits move with the order of the rounding.)

# %%
fuse.remove(lm)
exact = step().float()
rows = []
for part in ("none", *fuse.parts(), "all"):
    fuse.apply(lm, **{name: part in (name, "all") for name in fuse.parts()})
    off = (step().float() - exact).abs().max().item()
    seconds = timing.measure(step, device=lm.device, warmup=2, repeats=9).median
    name = words[part] if part in ("none", "all") else part
    rows.append((name, len(profile.trace(step, lm.device).kernels), seconds, off))
show(tables.switches(rows))

# %%
after = profile.trace(step, lm.device)
fuse.remove(lm)
print("removed, and bit for bit as before:", bool((step().float() == exact).all()))
pictures = {
    f"{words['unfused']}: {len(before.kernels)}": one_layer(before),
    f"{words['fused']}: {len(after.kernels)}": one_layer(after),
}
widgets.show_figure(plots.kernels(pictures), words["kernels_after"])

# %% [markdown]
# **An honest loss.** On a processor the step is hardly faster, if at all. Triton's kernels do not run here
# (interpreted, a step would take minutes), so labkit's torch references stand in. A part alone may even take *more*
# operators, for what goes in and out of it has to be laid out anew; all together take fewer, and the norms are as
# many operations as before. On a GPU `norm`, `rope` and `merge` take many kernels away, and all together most of
# them. (`gated` alone must first lay gate and up side by side, which `merge` saves it; `attention` changes steps with
# pieces of prompts.) The column of times says less there: Python sets that pace, and Python's pace varies.

# %% [markdown]
# ## 7 · The gaps, and the recipe by heart
#
# Kernels are few now. But Python still launches each, and on the recorded GPU that is what takes longest. From
# the recorded token: how long does the host need for a launch, and the device for a kernel? With the kernels of
# one layer, host and device work like this. (Computed from the two figures, not measured.)

# %%
launch, kernel = parts.whole / parts.kernels, parts.busy / parts.kernels
print(f"a launch every {timing.duration(launch)}, a kernel of {timing.duration(kernel)} on average")
per_layer = round(parts.kernels / seven.layers)
traffic = arithmetic.layer_traffic(seven, 1, 2)
few = per_layer - sum(one.kernels[0] - one.kernels[1] for one in traffic)
weights_in = arithmetic.layer_weights(seven, 2) / ceilings.bandwidth
fused_kernel = weights_in / few + 2e-6  # a share of reading the weights, and about 2 µs to start and to end
runs = {
    words["eager_layer"].format(kernels=per_layer): (per_layer, launch, kernel),
    words["fused_layer"].format(kernels=few): (few, launch, fused_kernel),
    words["graph_layer"]: (few, launch / 50, fused_kernel),  # the device launches by itself
}
widgets.show_figure(plots.launches(runs, (words["host"], words["device"])), words["launches"])

# %% [markdown]
# The first picture is the kitchen of today: the device (orange) waits for the host (blue). Fused, there are
# fewer launches, and still the host sets the pace. In the third, the host says *once* what is to be done.
#
# A **CUDA graph** is a recording. While it *captures*, the device runs nothing: each launch is written down,
# kernel by kernel, with **the addresses and the numbers** it was given. *Replay* launches the whole list with one
# call. No line of Python runs any more, and that is both the gain and the danger. What changes from step to step
# must arrive **in the same memory**; all else is as it was on the day of the recording.
#
# `Tape` is a graph in slow motion. It records torch's operations instead of kernels, so that it works on any
# device, and it refuses what a capture refuses. Six pieces of work, each captured with x = 1, 2, 3, 4 and n = 2,
# then replayed after its input has changed to x = 5, 5, 5, −5 or n = 4:
#
# 1. x · 2, the new values written into x
# 2. x · 2, x is another tensor now
# 3. the sum of the first n numbers, n a Python number
# 4. the sum of those whose place is less than n, n a tensor, changed in place
# 5. x if its sum is positive, else −x
# 6. the positive numbers of x, `x[x > 0]`
#
# How many of the six are right when they are replayed? (What is refused is not right.)

# %%
predict("right when replayed", None, "of 6")

# %%
place = torch.arange(4)
now = SimpleNamespace()


def changed():
    """New input, written to where the old one was."""
    now.x.copy_(torch.tensor([5.0, 5.0, 5.0, -5.0]))


def replaced():
    """New input in new memory."""
    now.x = torch.tensor([5.0, 5.0, 5.0, -5.0])


def longer():
    """Another Python number, and the same in place."""
    now.n = 4
    now.count.fill_(4)


def numbers(tensor):
    """A tensor's numbers as text."""
    return " ".join(f"{value:g}" for value in tensor.reshape(-1).tolist())


works = {
    "new_values": (lambda: now.x * 2, changed),
    "new_tensor": (lambda: now.x * 2, replaced),
    "python_number": (lambda: now.x[: now.n].sum(), longer),
    "device_number": (lambda: torch.where(place < now.count, now.x, 0.0).sum(), longer),
    "branch": (lambda: now.x * 1 if now.x.sum() > 0 else -now.x, changed),
    "bool_index": (lambda: now.x[now.x > 0], changed),
}
rows = []
for name, (work, change) in works.items():
    now.x, now.n, now.count = torch.tensor([1.0, 2.0, 3.0, 4.0]), 2, torch.tensor(2)
    try:
        tape = Tape(work)
    except LabkitError:
        rows.append((name, words["refused"], "–", "–"))
        continue
    captured = numbers(tape.result)
    change()
    rows.append((name, captured, numbers(tape.replay()), numbers(work())))
right = sum(again == anew != "–" for _, _, again, anew in rows)
predict.compare("right when replayed", right, "of 6")
show(tables.captures(rows))

# %% [markdown]
# Three rules, then:
#
# - **Memory stays.** New input is copied into the tensors that the graph knows (lines 1 and 2).
# - **Python numbers are frozen.** What varies lies on the device (4), or it is part of the graph's *key*, and there
#   is one graph for each of its values (3).
# - **Nobody asks the device.** No `if` on a result, no `.item()`, no shape that depends on values (5 and 6).
#
# For an engine, rule two is the hard one: a step has another number of tokens each time. The answer is
# **buckets**: graphs for 1, 2, 4, 8 … tokens. A step takes the next larger one, and *padding* fills it up: tokens
# that belong to nobody. They too compute, and write a key and a value. Where may they write?

# %% [markdown]
# ### Exercise: `graph_step` · extra, 10 minutes
#
# A CUDA graph replays recorded launches: same kernels, same shapes, same addresses, and the same **Python numbers**
# that the kernels got when it was recorded. What changes from step to step must be *data in tensors* that the graph
# reads anew. So a decode step of 5 rows is padded to the next captured size, the **bucket**, and everything that was
# baked in names the graph: its **key**.
#
# Padding rows run like all others: they read, and they write a key and a value. Send them to block 0, the one that
# no row owns (slots 0 to block size − 1, slot 0 will do), with a visible length of 1: with 0 the softmax would run
# over nothing, and make NaN.


# %% answer="graph_step"
def graph_step(ids, slots, visible, tables, numbers, buckets, width):
    """A decode step, one new token a row, as the fixed-size input of a CUDA graph.

    ids:     each row's token
    slots:   where its key and value are written: block · block size + place in the block
    visible: how many tokens each row may attend to, the new one included
    tables:  each row's block numbers, lists of different lengths, at most width
    numbers: Python numbers that kernels receive in this step, by name, such as {"splits": 4}, the pieces into which
             attention cuts a row
    buckets: numbers of rows that graphs are captured for, in any order
    width:   entries of a table in every graph

    Returns (key, inputs), or None when no bucket is large enough (the step then runs without a graph).
    key:    a tuple of plain values; equal for two steps exactly when one graph can serve both: same bucket, same
            numbers (in whatever order the dict has them)
    inputs: {"ids": …, "slots": …, "visible": …, "tables": …} lists for the smallest bucket that fits: the rows
            first, then padding (token 0, slot 0, length 1, a table of zeros); each table filled up with 0 to width
    Leaves its arguments as they are.
    """
    ### BEGIN SOLUTION
    fitting = [bucket for bucket in buckets if bucket >= len(ids)]
    if not fitting:
        return None
    bucket = min(fitting)
    idle = bucket - len(ids)
    inputs = {
        "ids": list(ids) + [0] * idle,
        "slots": list(slots) + [0] * idle,
        "visible": list(visible) + [1] * idle,
        "tables": [list(table) + [0] * (width - len(table)) for table in [*tables, *[[]] * idle]],
    }
    return (bucket, *sorted(numbers.items())), inputs
    ### END SOLUTION


# %% check="graph_step"
check.graph_step(graph_step)

# %% [markdown]
# Three rows on their way into a graph. The key says which graph; the lists are what is copied into its memory:

# %%
graph_step = check.use("graph_step", graph_step)

key, inputs = graph_step(
    [71, 12, 9], [37, 90, 112], [6, 27, 1], [[2], [4, 5], [7]], {"splits": 4}, (1, 2, 4, 8), 3
)
print("key:", key)
for name, values in inputs.items():
    print(f"{name:>8}: {values}")

# %% [markdown]
# labkit's engine does this for decodes and for steps that mix them with pieces of prompts: `engine_for(lm,
# graphs=True)`.

# %% [markdown]
# ## 8 · The ladder
#
# All of it, a rung at a time, on one machine in one run. The **memory ceiling** is the pace at which the
# weights (and the row's keys and values) could be read, and nothing else done. Its share is the MBU of
# notebook 01. The rungs are measured in turn, up the ladder and down again, and each one's best round counts:
# another program on the machine can only make a step longer.

# %%
ROUNDS, NEW = (2, 49) if on_gpu else (5, 17)  # a processor is shared with more programs
short, request = (Request(prompt=text[:128], max_tokens=count, ignore_eos=True) for count in (4, NEW))


def plain_loop():
    """Time per output token of transformers' model in a plain loop [s]."""
    return profile.generate(lm, text[:128], NEW).latency.tpot


def engine_step(rung):
    """Median time of a decode step of one row through the engine, with what the rung switches on [s]."""
    with standing(lm, rung, rows=4, blocks=64, share=False) as engine:
        engine.run([short])  # warm up, and capture
        done = engine.metrics.count
        engine.run([request])
        steps = [one.seconds for one in engine.metrics.steps[done:] if one.decodes == one.tokens == 1]
    return statistics.median(steps[1:])


remove(lm.model)  # the engine and the plain loop each bring their own attention
tried = {words["rung_plain"]: plain_loop}
for rung in RUNGS[: 4 if on_gpu else 3]:  # elsewhere nothing is launched, so there is nothing to capture
    tried[words[records.RECORDED[rung.name]]] = partial(engine_step, rung)
measured = {name: [] for name in tried}
for number in range(ROUNDS):
    for name in tried if number % 2 == 0 else reversed(tried):
        measured[name].append(tried[name]())
ladder = {name: min(seconds) for name, seconds in measured.items()}

# %%
here = profile.ceilings(lm.device)
floor = profile.cost_card(lm, here, prompt=128, context=128 + NEW // 2).decode.memory_seconds
ladders = {f"{lm.name}, measured here": (ladder, floor)}
there = records.ladder(h200) if h200 else None
if there:
    ladders[f"labcoder@7b, {h200['badge']}"] = there
widgets.show_figure(plots.ladder(ladders), words["ladder"])

# %% [markdown]
# Where a rung adds little, ask what it takes away. On a processor nothing is launched, so there are no graphs, and
# the kernels are torch's as before. Fused kernels *without* merged projections may even lose there: the one that
# rotates wants query, key and value side by side, and somebody has to copy them there. What separates these bars
# from the ceiling is Python, and torch's own work for each operator. (For a single row the engine may be behind the
# plain loop: a scheduler and a sampler that can serve a crowd have their price.)
#
# On a GPU the order of the rungs hides a trap: fused kernels *alone* can look like a disappointment, for as long
# as the host sets the pace only launches count, and a Triton kernel launched from Python costs the host several
# times as much as one of torch's: a third of the launches is not a third of the time. Their bytes begin to count
# once the graph has closed the gaps. Amdahl again.
#
# **The other road.** `torch.compile` reads the model's code, and writes fused kernels itself; with
# `mode="reduce-overhead"` it puts them into CUDA graphs, too. labkit's engine takes that road with
# `fuse.compiled.apply(lm)`: attention stays as it is, all around it is compiled. It costs a compilation (up to a
# minute, and again for shapes of another kind), and it does only what it can prove: paged attention or a merge of
# weights it will not invent.
#
# **A framework from outside.** ONNX Runtime rewrites a graph when it loads it. One layer of labcoder on the
# processor, its optimisations off and on (the extra `onnx` must be installed). How to hand a whole model to vLLM
# or TensorRT-LLM is in [docs/handing_over.md](../docs/handing_over.md).

# %%
try:
    print(onnx.study(labkit.load("labcoder", device="cpu")))
except LabkitError as error:
    print(error)

# %% [markdown]
# Above all, did it fuse what you thought? Its report counts operators. Back to labkit, where a run is recorded: what
# one decode step puts on the GPU's timeline. Fusion lowers *kernels a step*, a graph *launches by
# the host*.

# %%
step_table = records.steps(h200) if h200 else None
show(step_table) if step_table else print(words["not_recorded"])

# %% [markdown]
# And each kernel by itself, against the best of torch, `torch.compile` and Liger in the recorded run. A ladder
# shows that the whole became faster; it does not show which kernel deserves it. Losses belong into the table. (The
# fewest and the most tokens of each; what lies between is in the record. *Rotation alone*: Liger's kernel neither
# splits nor stores.)

# %%
kernel_table = records.kernels(h200) if h200 else None
show(kernel_table) if kernel_table else print(words["not_recorded"])

# %% [markdown]
# ## 9 · Everything at once
#
# Fused kernels, merged weights and graphs, under continuous batching on a paged cache: does the service still say
# the same? Random requests of different lengths, whose prompts arrive in pieces while others decode:

# %%
load = [one.request for one in workload(text, 8, prompts=(20, 200), outputs=(4, 24), seed=5)]


def answers(**options):
    """The tokens of every request."""
    with engine_for(lm, rows=8, blocks=512, step_tokens=64, **options) as engine:
        said = [ticket.samples[0].tokens for ticket in engine.run(load)]
    release(lm)
    return said


plain_answers = answers()
fuse.apply(lm)
fused_answers = answers(graphs=True)  # without a GPU this has no effect
same = sum(one == other for one, other in zip(plain_answers, fused_answers, strict=True))
print(f"the same answer to {same} of {len(load)} requests")

# %% [markdown]
# (In 16 bits a near-tie may fall the other way now and then: sums in another order round differently. In 32
# bits all should agree.)
#
# On a big GPU, where that is recorded, the whole service before and after. MFU is the share of the arithmetic
# that notebook 01 defined. A prompt of 2,048 tokens hardly waited for its launches: look how much less it gains than a
# short one, or than a load of decoding rows:

# %%
service_table = records.service(h200) if h200 else None
show(service_table) if service_table else print(words["not_recorded"])

# %% [markdown]
# And the rung: the file of notebook 04 is open, somebody types, and everything that you have seen so far is
# switched on.

# %%
OPEN_FILE = quality.evaluation_text("fixed")[:1300].rpartition("\n\n")[0]
TYPED = 'def main():\n    parser = argparse.ArgumentParser(description="Show the weather")\n'
prompts = [f"{OPEN_FILE}\n\n\n{TYPED[:end]}" for end in range(len(TYPED) - 4, len(TYPED) + 1)]
with engine_for(lm, rows=4, blocks=128, graphs=True) as engine:
    engine.run([Request(prompt="x = 1\n", max_tokens=4, ignore_eos=True)])
    typed = [
        engine.run([Request(prompt=one, max_tokens=32, ignore_eos=True)])[0].latency() for one in prompts
    ]
    blocks = max(one.used for one in engine.metrics.steps)
fuse.remove(lm)
release(lm)
ledger.add(
    "fused kernels, CUDA graphs" if on_gpu else "fused kernels",
    model=lm.name,
    device=results.device_name(str(lm.device)),
    notebook="05_fuse",
    ttft=statistics.median(one.ttft for one in typed[1:]),
    tpot=statistics.median(one.tpot for one in typed[1:]),
    throughput=statistics.median(one.tokens / one.e2e for one in typed[1:]),
    memory=lm.weight_bytes + blocks * 16 * token_bytes(lm),
)
ledger.show()

# %% [markdown]
# Like notebook 04's, this rung is one person's, and TTFT is that of a keystroke whose file was found in the cache.
# Compare it with rungs of the same model on the same machine. It goes through the whole engine, with its
# scheduler and its sampler, so on a small model its pace may be a little behind a bare loop's.

# %% [markdown]
# ## 10 · Bug hunt
#
# A decoder with one captured step, as one finds them. The cache has a fixed size (transformers' `StaticCache`), the
# newest token lies in a fixed place, the step runs without Python. It is captured once and then replayed for every
# token. (`Tape` stands in for `torch.cuda.CUDAGraph`, and differs in one respect: while it captures, it also
# computes.)


# %%
class GraphedDecoder:
    """Greedy decoding by replaying one captured step."""

    def __init__(self, prompt):
        self.cache = StaticCache(config=lm.config, max_cache_len=len(prompt) + 64)
        ids = torch.tensor([prompt], device=lm.device)
        logits = lm.model(ids, past_key_values=self.cache, use_cache=True).logits
        self.token = logits[:, -1].argmax(-1, keepdim=True)  # the graph's input and output
        self.position = len(prompt)
        self.graph = None

    def step(self):
        """One token: from self.token to the next one, in the same place."""
        position = torch.full_like(self.token, self.position)
        logits = lm.model(
            self.token, position_ids=position, past_key_values=self.cache, use_cache=True
        ).logits
        self.token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.position += 1

    def generate(self, count):
        """The next tokens."""
        tokens = [self.token.item()]
        while len(tokens) < count:
            if self.graph is None:
                self.graph = Tape(self.step)
            else:
                self.graph.replay()
            tokens.append(self.token.item())
        return tokens


@torch.no_grad()
def compare_with_plain(decoder, count=24):
    """Text of a graphed decoder beside that of the plain loop."""
    prompt = lm.encode(PROMPT)[0].tolist()
    mine, right = decoder(prompt).generate(count), profile.generate(lm, prompt, count).ids
    agree = next((n for n, (a, b) in enumerate(zip(mine, right, strict=False)) if a != b), count)
    print(f"{'─' * 20} graph\n{lm.decode(mine)}\n{'─' * 20} plain loop\n{lm.decode(list(right))}")
    print(f"{'─' * 20}\nthe first {agree} of {count} tokens agree")


PROMPT = OPEN_FILE + "\n\n\ndef read_config(path):\n"
compare_with_plain(GraphedDecoder)

# %% [markdown]
# It runs, and it writes something like code. A test with one or two tokens passes. What is wrong? Decide
# before you read on; section 7's table has the answer in one of its lines.
#
# <details><summary>What is wrong?</summary>
#
# `self.position` is a Python number. `torch.full_like` was captured with its value, and `self.position += 1` ran
# once, at the capture; replay runs no Python. The cache moves on (transformers keeps its length on the
# device), but every later token is rotated as if it stood at one and the same position. Attention then gets its
# distances wrong, a little more with every token.
#
# </details>
#
# Repaired: the position lives on the device, and the graph itself moves it on.


# %%
class RepairedDecoder(GraphedDecoder):
    """The position is a tensor, changed in place."""

    def __init__(self, prompt):
        super().__init__(prompt)
        self.position = torch.full_like(self.token, len(prompt))

    def step(self):
        """As before; whatever varies lies on the device."""
        logits = lm.model(
            self.token, position_ids=self.position, past_key_values=self.cache, use_cache=True
        ).logits
        self.token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.position.add_(1)


compare_with_plain(RepairedDecoder)

# %% [markdown]
# (In 16 bits a near-tie may part the two later on.)
#
# Two relatives of this fault, both quiet. A new input is *assigned* (`self.token = new`) instead of copied, and
# the graph reads the old memory for ever. And a wrapper falls back to the unfused path without a word (a missing
# package, an odd shape, a `try` around the import), so that what one times is not the kernel. labkit's report and
# its count of kernels exist for that: trust neither a speed nor its absence before you have seen what ran.

# %% [markdown]
# ## Claims checked

# %%
own = {rung.notebook: rung for rung in ledger.rungs() if rung.model == lm.name}
theirs = {rung.notebook: rung for rung in ledger.recorded()}
pace = {name: 1 / seconds for name, seconds in ladder.items()}
figures = records.Figures(
    plain=own.get("01_profile"),
    now=own.get("05_fuse"),
    step=(ladder[words["rung_engine"]], ladder[words["rung_merged"]]),
    ladder=(ladder[words["rung_plain"]], list(ladder.values())[-1]),
    attention=(lengths[-1], attention_gain[-1]),
    peers=words["best_peer"].format(
        name=words["rung_plain"], rate=pace[words["rung_plain"]], ours=list(pace.values())[-1]
    ),
)
recorded = records.figures(theirs, h200)
show(records.claims(lm.name, figures, recorded, results.load("ledger")))

# %% [markdown]
# **Why they differ**
#
# - *The 10 ×* is not a property of the techniques but of the plain model they are compared with. Where a step waits
#   for launches, taking the launches away gives most of it; where it waits for Python on a processor, little. And
#   the ladder has more than one end: TTFT fell with the prefix cache, throughput rose with the batch, TPOT is
#   this notebook's. No single factor says all three. (Notebook 06 finishes the ladder.)
# - *Merged QKV, linear + GELU and residual fusions*: right, and small each. They take launches away and some
#   trips to memory. What is left is reading the weights, which no fusion can shorten. (Linear + GELU is for models
#   whose MLP has one: labkit's kernel can do it, a Llama has no use for it.)
# - *At least 40 %* for fused attention needs a length. Where the scores fit into a cache there is little to
#   gain; at thousands of tokens it is several times as fast, and needs memory for no score at all. And it is 40 % of
#   *attention*: by Amdahl's law, of a short prompt's prefill that is little.
# - *Frameworks do it for you*: yes, for the shapes and models they know. `torch.compile` fuses elementwise
#   chains by itself; vLLM and TensorRT-LLM come with kernels for merged projections, paged attention and graphs.
#   None does it without limits: new models fall back to slow paths, and knowing what *should* run is how one
#   notices.

# %% [markdown]
# ## Common misconceptions
#
# - *"Fusion saves arithmetic."* It saves trips to memory and launches; the FLOPs are the same, now and then more
#   (online softmax scales again and again).
# - *"FlashAttention is an approximation."* It is exact, but for rounding.
# - *"A faster kernel makes a faster model."* By its share of the time, and no more; in a step that waits for
#   launches, not at all.
# - *"CUDA graphs make kernels faster."* They make *nothing between kernels*. A step of few long kernels (a large
#   prefill) gains hardly anything.
# - *"Triton code is fast code."* A kernel with the wrong tile or without coalesced reads is slower than torch's.
#   Measure each against the best there is, and keep the losses.
# - *"An interpreter's timing shows which kernel is better."* It shows whether it is right, and what it touches.

# %% [markdown]
# ## Interview questions
#
# <details><summary>Elementwise kernels take 12 % of a step; fused, a third of that. What does the step gain?</summary>
#
# 1 / (1 − 0.12 + 0.12 / 3) = 1.09 ×. Even if they vanished: 1 / 0.88 = 1.14 ×.
#
# </details>
# <details><summary>Why does RMSNorm fused with the residual addition still write the sum?</summary>
#
# The next residual addition needs it. What is saved is reading it back, and whatever the norm's own steps wrote
# in between.
#
# </details>
# <details><summary>Softmax needs the sum over all scores. How can attention be computed tile by tile?</summary>
#
# With a running maximum and sum: when the maximum rises from m to m′, the sum and the mixture so far are
# multiplied by exp(m − m′). At the end the mixture is divided by the sum.
#
# </details>
# <details><summary>A step takes 20 ms at batch 1 and at batch 128. What do you look at, what helps?</summary>
#
# The gaps between kernels: a step that does not grow with its work waits for launches. CUDA graphs, and fewer
# kernels. Only then do faster kernels pay.
#
# </details>
# <details><summary>How does one CUDA graph serve rows that grow with every step?</summary>
#
# Lengths and block tables are tensors in fixed places, read by the kernels on the device; grids are chosen for the
# longest case, and programs beyond a row's end do nothing. What must be a Python number is part of the key.
#
# </details>
# <details><summary>What happens to padding tokens in a captured step?</summary>
#
# They run like all others: their keys and values go to a block that no row owns, they see one token (so that
# no softmax is over nothing), and their logits are thrown away.
#
# </details>
# <details><summary>When does merging QKV not pay, or not work?</summary>
#
# With many tokens the product is large enough either way. It does not work where the three have different
# scales (per-tensor quantisation), formats or adapters.
#
# </details>

# %% [markdown]
# **Where this is used.** FlashAttention and FlashInfer are section 5, for every shape and precision. vLLM and
# SGLang capture graphs by batch size and load QKV merged; Liger Kernel and Unsloth are fused Triton kernels for
# training; `torch.compile` writes Triton for you, and `TORCH_LOGS=output_code` shows it. TensorRT-LLM and ONNX
# Runtime fuse a graph that was exported beforehand.
#
# **What next.** The engine is as fast as we could make it. But people do not meet an engine: they meet a service,
# with a network, a queue, a bill, and a bad day. The next notebook, `06_operate` (it is coming), watches the
# unluckiest table.

# %%
progress.show("05_fuse")
