# %% [markdown]
# # 04 · Stock made ahead, and a small fridge
#
# Your completion service has become popular. Many people type at once, and each of them sends *the same file
# again* with every few keystrokes. Two things hurt now. The model reads that file from its first line every
# time. And what it remembers of everybody's text fills the memory, so that fewer people fit into a batch than
# the machine could serve.
#
# Both are about the **KV cache**: what the model keeps of the tokens that it has read. In the kitchen that is
# stock, made ahead so that no soup starts from nothing, and it must fit into a fridge. This notebook makes the
# stock, measures the fridge, packs it without gaps, and lets several tables share one pot.
#
# **After this notebook you can**
#
# - write a decode step over a cache, and say what it saves and why it changes nothing,
# - compute how large a cache is, for any model, context and batch,
# - explain paging: blocks, tables, reference counts, copy-on-write, and what memory it wins,
# - find a prefix that was computed before, without ever serving somebody else's,
# - say when keys and values are worth compressing, and how much time a found prefix saves, where.
#
# **You need** notebook 01 (TTFT, TPOT, launch-bound); attention as section 6 there explained it. What a
# *batch* is: several requests (*rows*) computed in one step. Section 3 borrows the engine of notebook 03 once,
# and says what it does. No GPU, no network. Terms: [docs/glossary.md](../docs/glossary.md).
#
# **How long it takes.** The core exercises about 25 minutes; with reading and measuring about an hour and a
# quarter. Exercises marked *extra* can wait. Run cells one at a time (Shift+Enter); stuck?
# `check.hint("cached_attention")`. Later cells never depend on your answer.
#
# Run this first cell; you need not read it.

# %% role="setup"
import math
import statistics
import time

import torch

import labkit
from labkit import profile, quality, results, timing
from labkit.batch.build import engine_for
from labkit.batch.replay import replay
from labkit.batch.workload import workload
from labkit.cache import bench, kv_study
from labkit.cache.attention import install, remove
from labkit.cache.host_store import HostStore
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import ContiguousCache, PagedCache
from labkit.cache.recompute import Recompute
from labkit.cache.room import lengths_of
from labkit.cache.tables import BlockTables
from labkit.course import Table, check, ledger, predict, progress, show, texts, widgets
from labkit.course.plots import cache as plots
from labkit.course.tables import cache as tables
from labkit.models import PRESETS

words = texts.words("04_cache")

# %% [markdown]
# The ledger so far: what was recorded on a big GPU, and your own rungs, if you have added some. We begin at
# the rung *plain model*. Its TTFT is what we are after; its memory decides how many people one machine can
# serve.

# %%
ledger.show()

# %%
progress.show("04_cache")

# %%
lm = labkit.load()
text = lm.encode(quality.evaluation_text("fixed"))[0].tolist()  # code that the model has never seen
big = lm.device.type == "cuda"  # a GPU can do larger experiments in the same time
h200 = results.load("cache")
print(f"{lm.name} in {lm.dtype} on {lm.device}; {len(text):,} tokens of text to try things on")
if h200 is None:
    print(words["not_recorded"])

# %% [markdown]
# ## 1 · Never compute it twice
#
# To choose the next token, attention compares the newest token's *query* with the *keys* of all tokens before
# it, and mixes their *values*:
#
# $$o_t = \sum_{i \le t} \operatorname{softmax}_i\!\left(\frac{q_t \cdot k_i}{\sqrt d}\right) v_i$$
#
# The older keys and values do not depend on the newest token: nobody looks ahead. So they are the same in
# every step, and one may keep them. That is the whole idea of the KV cache. It changes no result; it only
# refuses to compute the same thing again.
#
# ### Exercise: `cached_attention` · core, 8 minutes
#
# One decode step. The new token brings a query, a key and a value for each head; the cache holds the keys and
# values of the tokens before it. The check feeds a text token by token, from an empty cache, and compares
# every step with a whole causal attention over everything.


# %% answer="cached_attention"
def cached_attention(query, key, value, keys, values):
    """Attention of one new token over the cached ones and itself.

    query, key, value: tensors [heads, dim], those of the new token
    keys, values:      tensors [heads, past, dim], the cache; past is 0 for the first token

    Returns (output, keys, values): output [heads, dim], and the cache with the new token as its last,
    [heads, past + 1, dim].
    """
    ### BEGIN SOLUTION
    keys = torch.cat([keys, key[:, None]], dim=1)  # first, for a token sees itself
    values = torch.cat([values, value[:, None]], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,htd->hd", scores.softmax(dim=-1), values), keys, values
    ### END SOLUTION


# %% check="cached_attention"
check.cached_attention(cached_attention)

# %% [markdown]
# Your function over a random text, token by token, against computing everything again for every token:

# %%
cached_attention = check.use("cached_attention", cached_attention)

noise = torch.Generator().manual_seed(1)
q, k, v = torch.randn(3, 8, 200, 64, generator=noise).unbind()  # [heads, tokens, dim] each
start = time.perf_counter()
keys, values, over_cache = k[:, :0], v[:, :0], []
for t in range(200):
    output, keys, values = cached_attention(q[:, t], k[:, t], v[:, t], keys, values)
    over_cache.append(output)
middle = time.perf_counter()
whole = torch.nn.functional.scaled_dot_product_attention
anew = [whole(q[:, : t + 1], k[:, : t + 1], v[:, : t + 1], is_causal=True)[:, t] for t in range(200)]
end = time.perf_counter()
print(f"over a cache {timing.duration(middle - start)}, computed again {timing.duration(end - middle)}")
print(f"largest difference: {(torch.stack(over_cache) - torch.stack(anew)).abs().max():.1e}")

# %% [markdown]
# The same numbers, but for rounding. The rest of the model saves even more: with a cache its layers see one token
# in each step, without it all of them. (`torch.cat` copies the whole cache to add one token. A paged cache
# writes it into its place, and copies nothing.)
#
# Now the whole model. For a feeling, one pass over a single token and one over 128, both from nothing:

# %%
with torch.inference_mode():
    for count in (1, 128):
        ids = torch.tensor([text[:count]], device=lm.device)
        timed = timing.measure(lambda ids=ids: lm.model(ids, use_cache=False), device=lm.device, repeats=5)
        print(f"a pass over {count:3} tokens: {timing.duration(timed.median)}")

# %% [markdown]
# A step over a cache is a pass over one token, and looks at what is cached besides. Without a cache, the step
# is a pass over everything. A text has 1,024 tokens: how many times longer does the next one take without a
# cache than with it?

# %%
predict("recompute over cache at 1,024 tokens", None, "×")

# %% [markdown]
# `labkit` has three caches with one interface. **Recompute** keeps nothing but tokens. **ContiguousCache**
# gives every row one stretch of memory. **PagedCache** is what this notebook is about. A row's life:
#
# - `open(row, tokens)` begins it, and says how many of its tokens need not be computed;
# - a `Chunk(row, start, ids)` says which tokens of it run in this step, and from which position: first the
#   whole prompt, then one token at a time;
# - `pack(chunks)` makes room for them, and `forward` runs the chunks of all rows together;
# - `commit(row, tokens)` says that they have run; `release(row)` ends the row.
#
# `install` puts an attention into the model that reads from any of the three.

# %%
install(lm.model)


@torch.inference_mode()
def serve(cache, prompts, count):
    """`count` tokens after each prompt, always the likeliest; all rows run together, in each step."""
    rows = [list(prompt) for prompt in prompts]
    done = [cache.open(number, row) for number, row in enumerate(rows)]  # tokens that need not run any more
    for _ in range(count):
        chunks = [Chunk(number, done[number], row[done[number] :]) for number, row in enumerate(rows)]
        logits = forward(lm, cache.pack(chunks))  # one line a row, that of its last token
        for number, row in enumerate(rows):
            cache.commit(number, row)
            done[number] = len(row)
            row.append(int(logits[number].argmax()))
    return [row[-count:] for row in rows]


prompts = [text[2000 * row :][:length] for row, length in enumerate((40, 230, 90, 150))]
caches = {
    words["no_cache"]: Recompute(lm),
    words["contiguous"]: ContiguousCache(lm, rows=len(prompts), capacity=512),
    words["paged"]: PagedCache(lm, blocks=64, block_size=16, share=False),
}
trials, answers = {}, {}
for name, cache in caches.items():
    serve(cache, prompts, 1)  # not timed, for first calls are slow
    for row in range(len(prompts)):
        cache.release(row)
    start = time.perf_counter()
    answers[name] = serve(cache, prompts, 6)  # ends in Python lists, so the device is done
    seconds = time.perf_counter() - start
    trials[name] = tables.Trial(seconds, cache.reserved_bytes, cache.used_bytes, 6)
show(tables.caches(trials))
print("the same tokens from all three:", len({str(answer) for answer in answers.values()}) == 1)

# %% [markdown]
# The same tokens, and three prices. (In 16 bits two nearly equal candidates may change places once in a
# while; in 32 bits you will hardly see it.) The first row pays in time and reserves nothing. The other two
# pay in memory, and the second reserves much more than it uses: remember that for section 3. Which of these
# two is faster here is chance. And their time is an average over six steps of four rows, the first of which
# reads four prompts: no single step takes that long, or that short.
#
# So now one step alone, of one row, over longer and longer texts:

# %%
lengths = (64, 256, 1024, 4096) if big else (64, 256, 1024)


@torch.inference_mode()
def step_seconds(cache, length):
    """Median time of the step that follows `length` tokens [s]."""
    cache.open(0, text[:length])
    forward(lm, cache.pack([Chunk(0, 0, text[:length])]))
    new = Chunk(0, length, [text[length]])
    timed = timing.measure(lambda: forward(lm, cache.pack([new])), device=lm.device, warmup=1, repeats=3)
    cache.release(0)
    return timed.median


room = max(lengths) + 16
caches = {
    words["no_cache"]: Recompute(lm),
    words["contiguous"]: ContiguousCache(lm, rows=1, capacity=room),
    words["paged"]: PagedCache(lm, blocks=room // 16, block_size=16),
}
steps = {name: [step_seconds(cache, length) for length in lengths] for name, cache in caches.items()}
widgets.show_figure(plots.step_lines(lengths, steps), words["steps"])
at = lengths.index(1024)
predict.compare(
    "recompute over cache at 1,024 tokens", steps[words["no_cache"]][at] / steps[words["paged"]][at], "×"
)

# %% [markdown]
# Without a cache, $n$ tokens of output cost $n$ prefills. With one, a step computes a single token: its
# weights must be read, and the cache is read too, but nothing old is computed again. On a big GPU the first
# points of both lines lie close together: there a prefill of a few hundred tokens hardly costs more than a
# step that waits for its launches.

# %% [markdown]
# ## 2 · What the stock weighs
#
# Every layer keeps the key and the value of every token of every row. A model may have fewer **KV heads** than
# query heads (*grouped-query attention*, GQA): then several query heads read the same key. Not every argument
# below is needed.
#
# ### Exercise: `kv_bytes` · core, 3 minutes


# %% answer="kv_bytes"
def kv_bytes(layers, heads, kv_heads, head_dim, tokens, batch, bytes_per_value):
    """Bytes of the keys and values of a batch.

    layers:          decoder layers
    heads:           query heads of one layer
    kv_heads:        key/value heads of one layer
    head_dim:        numbers in one key, and in one value
    tokens:          cached tokens of each row
    batch:           rows
    bytes_per_value: 2 for 16 bits

    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    per_token = 2 * layers * kv_heads * head_dim * bytes_per_value  # 2: a key and a value
    return per_token * tokens * batch
    ### END SOLUTION


# %% check="kv_bytes"
check.kv_bytes(kv_bytes)

# %% [markdown]
# In the glossary it stands as
#
# $$\text{KV bytes} = 2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head dim} \cdot \text{tokens}
# \cdot \text{batch} \cdot \text{bytes per value}$$
#
# The formula against the tensors that are really there. (`PagedCache` adds a **block 0** that no row ever
# gets: what must be written somewhere and is never read, such as padding, goes there.) Then two shapes that
# everybody runs: the 7B of 2023, which has a KV head for each query head, and an 8B of 2024, where four query
# heads share one. Llama-2 itself ends at 4k of context; its longer columns count several rows together.

# %%
kv_bytes = check.use("kv_bytes", kv_bytes)

shape = profile.shape_of(lm.config)
cache = PagedCache(lm, blocks=9, block_size=16)
there = sum(pages.keys.nbytes + pages.values.nbytes for pages in cache.layers)
formula = kv_bytes(shape.layers, shape.heads, shape.kv_heads, shape.head_dim, 10 * 16, 1, lm.dtype.itemsize)
print(f"9 blocks and block 0: {there:,} B in memory, {formula:,} B by the formula")

rows = []
for preset in ("7b", "8b"):
    one = PRESETS[preset]
    bill = [
        kv_bytes(one.layers, one.heads, one.kv_heads, one.head_dim, n, 1, 2) for n in (1, 2048, 8192, 32_768)
    ]
    rows.append([one.like, *(tables.size(count) for count in bill)])
show(Table([words["shape_name"], words["per_token"], "2k", "8k", "32k"], rows))

# %% [markdown]
# **A claim, checked.** "A 7B at long context needs 10 GB more." That depends on how many tokens are cached,
# over all rows together:

# %%
seven = PRESETS["7b"]
seven_token = kv_bytes(seven.layers, seven.heads, seven.kv_heads, seven.head_dim, 1, 1, 2)
many = 10e9 / seven_token
print(f"{seven.like}: 10 GB are {many:,.0f} tokens, such as {many / 4096:.1f} rows of 4k")

# %% [markdown]
# So the claim is right for a handful of people with a full context. With more of them it says too little: soon
# the cache weighs more than the weights, and unlike them it grows with every row. **The fridge decides how
# many orders fit into one batch.**

# %% [markdown]
# ## 3 · The half-empty fridge
#
# A contiguous cache gives each row one stretch of memory. How long must it be? Nobody knows how much a row
# will say, so it is as long as the limit: 8,192 tokens, reserved for a person who asks a question of fifty.
# (The cook keeps a whole shelf for each table, in case it orders everything.)
#
# Conversations of 64 to 8,192 tokens, spread evenly over that range. Which share of the reserved memory holds
# nothing?

# %%
predict("empty share of a contiguous cache", None, "%")

# %%
space = bench.room(lm)  # numbers only: nothing is allocated
predict.compare("empty share of a contiguous cache", 100 * space["contiguous_waste"], "%")

# %% [markdown]
# **Paging** (Kwon et al. 2023) does what operating systems do. Memory is cut into *blocks* of, say, 16
# tokens. A row gets a block when it needs one, any free one, and a *block table* remembers which. Then only
# the last block of a row can be partly empty. How small should a block be? (`BlockTables` is the book-keeping
# of a paged cache without its memory: `reserve` takes blocks for so many tokens, `commit` says that they are
# filled.)


# %%
def empty_share(lengths, block_size):
    """Share of the reserved blocks' room that holds no token."""
    pool = BlockTables(sum(-(-length // block_size) for length in lengths), block_size, share=False)
    for row, length in enumerate(lengths):
        pool.open(row, [])
        pool.reserve(row, length)
        pool.commit(row, length, ())
    return pool.waste


conversations = lengths_of(64)
sizes = (1, 4, 16, 64, 256, 1024, 8192)
paged = [empty_share(conversations, size) for size in sizes]
widgets.show_figure(
    plots.fragmentation(sizes, paged, 1 - sum(conversations) / (64 * 8192)), words["fragmentation"]
)

# %% [markdown]
# A row wastes half a block on average. So smaller is better for memory; but each block is an entry that
# somebody must look up, and a kernel likes to read long stretches. 16 to 64 tokens is where engines settle:
# the waste is down to nothing much. And at a block size of 8,192 the paged cache *is* the contiguous one: in
# `labkit` that is how `ContiguousCache` is written.
#
# What is not wasted can be lent. With the same memory, how much more work gets done? A rush:
# 24 requests at once, the memory of four rows of 512 tokens, once as four long shelves and once as blocks.
# `engine_for` puts the engine of notebook 03 around the cache: a waiting row joins at any step, as soon as
# its prompt fits. The two take turns, three times.

# %%
load = workload(text, 24, prompts=(16, 128), outputs=(12, 36), seed=4)
speeds = {words["contiguous"]: [], words["paged"]: []}
batch = {}
for _ in range(3):
    for name, size in ((words["contiguous"], 512), (words["paged"], 16)):
        with engine_for(lm, blocks=4 * 512 // size, block_size=size, rows=64, share=False) as engine:
            engine.run([load[0].request])  # warm-up
            speeds[name].append(replay(engine, load).tokens_per_second)
            batch[name] = max(len(step.rows) for step in engine.metrics.steps)
speed = {name: statistics.median(runs) for name, runs in speeds.items()}
gain = speed[words["paged"]] / speed[words["contiguous"]]
for name, runs in speeds.items():
    spread = f"{min(runs):,.0f} to {max(runs):,.0f}"
    print(f"{name:>10}: {speed[name]:,.0f} tokens/s ({spread}), at most {batch[name]} rows in a step")
print(f"{gain:.2f} × the throughput in the same memory")

# %% [markdown]
# More rows share each reading of the weights, so throughput rises, though less than the batch: each row
# brings its own cache to read and its own token to compute. (Nor do all 24 run at once: a row joins only if
# its whole prompt fits, and a few blocks stay free for those who are talking.)
#
# **The claim** says: at 8k of context 48 GB become 22 GB, and throughput 2.3 times as much. In numbers, for
# conversations of every length up to that limit, here and on the recorded GPU:

# %%
show(tables.room(lm.name, space, h200))

# %% [markdown]
# The ratio of memory is a property of *the lengths*, not of paging: it is the limit divided by the mean
# length, a little less for the last blocks. Where everybody fills the context, paging saves nothing; where
# most say little, it saves far more than the claim says. (The largest batch depends on the memory that
# happens to be free: run the cell again and the numbers move, their ratio hardly.)
#
# And the throughput? If a record is shown, compare the factors in its last two rows: the tokens per second
# grow less than the batch. At several thousand tokens a row, most of a large step is spent on reading *keys
# and values*, and paging does not make anybody's history shorter. More rows share the reading of the weights
# only; the gain is large where contexts are short, as in your run above, and small where they are long.

# %% [markdown]
# ## 4 · The block table
#
# Position $p$ of a row lies in entry $\lfloor p / \text{size} \rfloor$ of its table, at place $p \bmod
# \text{size}$ of that block. The attention kernel does this look-up for every key it reads: a *gather*.
#
# ### Exercise: `paged_gather` · core, 6 minutes
#
# A case to think with: blocks of 4 tokens, table `[7, 2]`. Position 5 is in the second block of the row,
# which is block 2 of the store, at place 1.


# %% answer="paged_gather"
def paged_gather(store, table, positions):
    """What the store holds for some positions of one row.

    store:     tensor [blocks, block_size, ...], the memory that all rows share
    table:     int64 tensor [n], the row's blocks, in the order of its text
    positions: int64 tensor [m], positions in the row, in any order; m may be 0

    Returns a tensor [m, ...], one entry for each position.
    """
    ### BEGIN SOLUTION
    size = store.shape[1]
    return store[table[positions // size], positions % size]
    ### END SOLUTION


# %% check="paged_gather"
check.paged_gather(paged_gather)

# %% [markdown]
# Watch a pool fill, block by block: move the slider from 0. Four people, A to D; a pool of 24 blocks of 4
# tokens. Everybody but C begins with the same 8 tokens. A box is a block, its bar is as long as the block is
# full; two letters are two rows that read *the same* memory. Hatched: nobody holds it, but its content is kept
# in case somebody asks again. Below the boxes, the rows' **block tables**.

# %%
pool = BlockTables(24, 4)
hello = text[:8]
said, found, story = {}, {}, []


def moment(title):
    """Keep what the pool looks like now."""
    story.append(plots.frame(f"{len(story)} · {title}", pool, found))


def say(row, tokens):
    """A row stores some tokens more; its full blocks can be found by others from now on."""
    said[row] = said[row] + tokens
    pool.reserve(row, len(said[row]))
    pool.commit(row, len(said[row]), said[row])


def arrive(row, tokens):
    """A row begins with what is there of its tokens, and stores the rest."""
    said[row] = []
    found[row] = pool.open(row, tokens) // 4  # blocks
    say(row, tokens)


moment("an empty pool")
arrive(0, hello + text[100:105])
moment("A arrives: 13 tokens, 4 blocks, the last with one token in it")
arrive(1, hello + text[200:206])
moment("B begins alike: the first two blocks are shared")
arrive(2, text[300:309])
moment("C begins differently and shares nothing")
for more in (3, 6, 9):
    for row in (0, 1, 2):
        say(row, text[400 + row : 403 + row])
    moment(f"everybody has said {more} tokens more")
pool.release(1)
moment("B leaves; what it had filled stays, in case somebody asks again")
pool.release(0)
moment("A leaves; now nobody holds the shared beginning")
arrive(3, hello + text[200:206] + text[500:503])
moment("D begins like B, and finds what B had computed")

every = list(range(len(story)))
widgets.explore(lambda moment: plots.pool(story[moment]), words["pool"], start={"moment": 0}, moment=every)

# %% [markdown]
# Four of these moments side by side:

# %%
widgets.show_figure(plots.pools([story[at] for at in (2, 6, 8, 9)]), words["pools"])

# %% [markdown]
# Neighbouring tokens of a row lie anywhere. Does reading them from scattered places cost speed? A recorded
# answer, for attention over blocks in random order. It is compared with *plain reading*: one large array from
# end to end, measured on the same GPU. (MHA, *multi-head attention*: a KV head for each query head, 32 here.
# GQA: 8 KV heads, each read by four query heads.)

# %%
if h200:
    show(tables.kernels(h200))
    print(tables.slowest(h200))

# %% [markdown]
# A block is a few kilobytes in one piece, long enough for the memory to run at its pace. Bandwidth is left
# unused where there is little to read at once, as with a single row and few KV heads: too little work to keep
# the whole device busy.

# %% [markdown]
# ## 5 · Shared, so be careful
#
# When two rows hold one block, neither may throw it away, and neither may write into it. Each block has a
# **reference count**: how many rows hold it.
#
# ### Exercise: `release_row` · extra, 3 minutes
#
# A row ends. Its blocks go back, but only those that nobody else holds. (Block 0 is reserved, remember: nobody
# holds it, and it is never among the free ones.)


# %% answer="release_row"
def release_row(table, counts, free):
    """Give back the blocks of a row that ends.

    table:  list of the row's blocks, each once
    counts: list, counts[block] is the number of rows that hold the block, this one included;
            counts[0] is 0 and stays so, for block 0 is reserved
    free:   list of the blocks that a row may be given

    Returns (counts, free), as they are afterwards: the same lists or new ones. The order of free does not
    matter.
    """
    ### BEGIN SOLUTION
    counts, free = list(counts), list(free)
    for block in table:
        counts[block] -= 1
        if counts[block] == 0:
            free.append(block)
    return counts, free
    ### END SOLUTION


# %% check="release_row"
check.release_row(release_row)

# %% [markdown]
# ### Exercise: `room_for_token` · extra, 11 minutes
#
# A service may draw three answers to one prompt. All three hold the prompt's blocks, the partly filled last
# one too; then each writes its own next token. **Copy-on-write**: whoever writes into a block that others
# hold takes a copy first. Make room for one more token. Three cases: a new block is needed; the last one is
# the row's own; the last one is shared.


# %% answer="room_for_token"
def room_for_token(table, length, counts, free, block_size):
    """Make room for a row's token at position `length`.

    table:      list of the row's blocks; they hold its first `length` tokens
    counts:     list, counts[block] is the number of rows that hold the block
    free:       list of the blocks that a row may be given; reserved block 0 is never among them
    block_size: tokens in a block

    Returns (table, counts, free, copy) as they are afterwards. copy is None, or (from, to): the block whose
    content must be copied before the token is written. The new block of a row has count 1, and any free
    block will do. Returns None when a block is needed and none is free.
    """
    ### BEGIN SOLUTION
    table, counts, free = list(table), list(counts), list(free)
    full = length % block_size == 0
    if not full and counts[table[-1]] == 1:
        return table, counts, free, None
    if not free:
        return None
    new = free.pop()
    counts[new] = 1
    if full:
        table.append(new)
        return table, counts, free, None
    old, table[-1] = table[-1], new
    counts[old] -= 1
    return table, counts, free, (old, new)
    ### END SOLUTION


# %% check="room_for_token"
check.room_for_token(room_for_token)

# %% [markdown]
# Three answers to a prompt of 40 tokens, in blocks of 16. Each writes one token, then all end:

# %%
room_for_token = check.use("room_for_token", room_for_token)
release_row = check.use("release_row", release_row)

samples = {name: [1, 2, 3] for name in "ABC"}
counts, free = [0, 3, 3, 3] + [0] * 8, list(range(4, 12))  # block 0 is reserved
for name, table in samples.items():
    samples[name], counts, free, copy = room_for_token(table, 40, counts, free, 16)
    print(f"{name}: {samples[name]}, copy {copy}, count of block 3 now {counts[3]}")
print(f"{11 - len(free)} blocks in use")
for table in samples.values():
    counts, free = release_row(table, counts, free)
print(f"after all have ended: {11 - len(free)} in use, counts {sorted(set(counts))}")

# %% [markdown]
# Two copies for three rows: the last one to write finds itself alone and keeps the original. Three separate
# caches would have held nine blocks. And at the end everything is back: an engine that loses one block in a
# thousand requests stops after a day.

# %% [markdown]
# ## 6 · Find it instead of computing it
#
# The person who types sends the same file again and again. A chat sends its system prompt and its history
# with every turn. Keys and values of those tokens were computed a second ago: *prefix caching* keeps the
# blocks and finds them again. Three rules make it right, and each is easy to break:
#
# 1. A key depends on **everything before it** (and on its position). So a block is found by the whole text up
#    to its end, never by its own tokens alone.
# 2. A fingerprint is a number, and two texts can share one. So **the tokens are compared**, or one customer
#    reads another's text.
# 3. At least **one token is computed**: a model that computes nothing has no logits to choose from.
#
# ### Exercise: `prefix_lookup` · core, 8 minutes
#
# `published` maps the fingerprint of a text (a list of tokens from the very beginning, whole blocks long) to
# the block that holds its last part, and to that whole text. Blocks may have been evicted: stop at the first
# one that is missing.


# %% answer="prefix_lookup"
def prefix_lookup(tokens, published, fingerprint, block_size):
    """Blocks that hold the longest published beginning of a prompt.

    tokens:      list of token ids, the prompt
    published:   dict, fingerprint -> (block, text): `block` holds the last block_size tokens of `text`,
                 which is a list of tokens from the beginning
    fingerprint: function of a list of tokens, returns a whole number; different lists may have the same
    block_size:  tokens in a block; only full blocks are published

    Returns the list of blocks, in the order of the text. At least one token of the prompt lies behind them.
    """
    ### BEGIN SOLUTION
    found = []
    for end in range(block_size, len(tokens), block_size):  # end < len(tokens): one is left to compute
        block, held = published.get(fingerprint(tokens[:end]), (None, None))
        if held != tokens[:end]:  # missing, or another text with the same fingerprint
            break
        found.append(block)
    return found
    ### END SOLUTION


# %% check="prefix_lookup"
check.prefix_lookup(prefix_lookup)

# %% [markdown]
# A file of 100 tokens was served before. Now it comes back, four times: as it was; with more behind it; with
# tokens 70 and 71 in each other's place; with another first token. The fingerprint is bad on purpose: it does
# not look at the order.

# %%
prefix_lookup = check.use("prefix_lookup", prefix_lookup)


def weak(tokens):
    """A fingerprint that does not look at the order."""
    return sum(tokens)


served = text[:100]
published = {weak(served[:end]): (end // 16, served[:end]) for end in range(16, 101, 16)}
swapped = [*served[:70], served[71], served[70], *served[72:]]
prompts = {
    "as it was": served,
    "more behind it": text[:130],
    "70 and 71 swapped": swapped,
    "another first token": [served[0] + 1, *served[1:]],
}
for name, prompt in prompts.items():
    blocks = prefix_lookup(prompt, published, weak, 16)
    print(f"{name:>19}: {16 * len(blocks):2} of {len(prompt)} tokens found")
trusted = [end for end in range(16, 100, 16) if weak(swapped[:end]) in published]
print(f"trusting the fingerprint, the swapped file would have found {max(trusted)}, with wrong keys in them")

# %% [markdown]
# An edit at the end finds almost everything. An edit at the top finds nothing, and that is right: everything
# behind it has changed. So put what changes *last* in a prompt: a date at the top of a system prompt empties
# the cache once a day, a session id with each request.
#
# (Comparing the whole beginning for each block is quadratic. `labkit/cache/prefix.py` gives every published
# block a name, and finds the next one by *(name of the block before, own tokens)*: the same rule, in linear
# time.)
#
# Several conversations over one system prompt of 256 tokens. They take turns; each turn sends everything said
# so far and 48 new tokens, and is answered with 32. Which share of all the prompt tokens is found? Once with
# room for everybody, once with a pool that is far too small:


# %%
def hit_rate(count, blocks, system=256, turns=4):
    """Share of prompt tokens that `count` conversations found in a pool."""
    pool = BlockTables(blocks, 16)
    histories = [text[:system] for _ in range(count)]
    for turn in range(turns):
        for number, history in enumerate(histories):
            begin = 1000 + 80 * (number * turns + turn)
            pool.open(0, history + text[begin : begin + 48])
            history += text[begin : begin + 80]  # the question, and the answer behind it
            pool.reserve(0, len(history))
            pool.commit(0, len(history), history)
            pool.release(0)
    return pool.prefix.statistics.hit_rate


counts, scarce = (1, 2, 4, 8, 12, 16), 48
asked = sum(256 + 48 + 80 * turn for turn in range(4))  # prompt tokens of one conversation
system_alone = [256 * (4 - 1 / count) / asked for count in counts]  # its very first turn finds nothing
rates = {
    words["plenty"]: [hit_rate(count, blocks=2000) for count in counts],
    words["scarce"].format(tokens=scarce * 16): [hit_rate(count, blocks=scarce) for count in counts],
}
widgets.show_figure(plots.hit_rates(counts, rates, system_alone, words["system_alone"]), words["hit_rates"])

# %% [markdown]
# With room, the rate *rises*: the system prompt is computed once, whoever comes later finds it. In the small
# pool the histories push each other out before their turn comes again, least recently used first. What stays
# is what everybody uses: the rate settles at what the system prompt alone gives (dotted). A good eviction rule
# keeps the pot that is ladled from most.
#
# What is a found prefix worth? Before you look: a prompt of 1,024 shared tokens and 64 of its own. Found, its
# TTFT is which share of the computed one?

# %%
predict("TTFT found, share of computed", None, "%")

# %%
prefix = bench.prefix(lm, text, shared=1024, own=64, repeats=5, warmup=1)
predict.compare("TTFT found, share of computed", 100 * prefix["ttft"]["warm"] / prefix["ttft"]["cold"], "%")

# %%
grid = []
for own in (16, 128):
    for shared in (64, 256, 512, 1024, *((4096,) if big else ())):
        measured = bench.prefix(lm, text, shared=shared, own=own, repeats=2, warmup=1)["ttft"]
        grid.append({"shared": shared, "own": own, **measured})


def draw(shared, own):
    """The picture at one position of the sliders."""
    return plots.prefix_lines(grid, shared, own)


axes = {axis: sorted({cell[axis] for cell in grid}) for axis in ("shared", "own")}
widgets.explore(draw, words["prefix"], **axes)

# %% [markdown]
# Looking a prefix up costs nothing worth a name. Still the lower line climbs a little: the own tokens are
# computed, and they attend to the whole prefix, found or not. Beside your figures, the recorded GPU's:

# %%
show(tables.warm_and_cold(lm.name, prefix, h200))

# %% [markdown]
# **It depends on what you wait for.** Where a cold TTFT is nearly all computing, as on a laptop, finding the
# prefix saves nearly all of it. A big GPU computes a thousand tokens in not much more time than Python needs
# to *launch* the pass: that is notebook 01's **launch-bound** loop. There finding them saves a part of the time,
# or nothing: the pass over the new tokens is launched all the same, and it launches more, to read the cached
# blocks. Four thousand tokens take their time even there, and the found prefix shows. What is saved at any
# length: arithmetic that other rows can use, and memory that is held once.

# %% [markdown]
# ## 7 · A smaller stock
#
# Two ways to shrink what is kept. **In use**, keys and values in 8 bits instead of 16: half the bytes, an
# error that must be measured. **Out of use**, a history moved to the host's memory, compressed *without any
# loss*.
#
# ### Exercise: `int8_kv` · extra, 7 minutes
#
# Whole numbers from −127 to 127 and a scale, $x \approx \text{int8} \cdot \text{scale}$, with one scale **for
# each token and head**: a token's key is written once and never touched again, and no loud token makes its
# neighbours coarse.


# %% answer="int8_kv"
def int8_kv(x):
    """Keys or values in int8, with one scale for each token and head.

    x: floating tensor [tokens, heads, dim]; some vectors may be all zeros

    Returns (whole, scales): whole int8 [tokens, heads, dim] from -127 to 127, rounded to the nearest;
    scales [tokens, heads], the largest absolute value of each vector divided by 127. A vector of zeros
    gives zeros.
    """
    ### BEGIN SOLUTION
    scales = x.abs().amax(dim=-1) / 127
    steps = x / torch.where(scales == 0, 1.0, scales)[..., None]  # 0/1 where there is nothing to scale
    return steps.round().to(torch.int8), scales
    ### END SOLUTION


# %% check="int8_kv"
check.int8_kv(int8_kv)

# %% [markdown]
# Real keys and values: those of a text in the second layer, read from a paged cache with your gather. (The
# queries are random numbers: only the rounding of what is kept is on trial.) Attention with the rounded ones,
# against attention with the originals; then the same with a single scale for the whole tensor:

# %%
paged_gather = check.use("paged_gather", paged_gather)
int8_kv = check.use("int8_kv", int8_kv)


def attend(query, keys, values):
    """Attention of one token [heads, dim] over [tokens, heads, dim]."""
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values)


cache = PagedCache(lm, blocks=16, block_size=16)
serve(cache, [text[:255]], 1)
table = torch.tensor(cache.tables.rows[0].blocks, device=lm.device)
places, layer = torch.arange(255, device=lm.device), cache.layers[1]
keys, values = (paged_gather(store, table, places).float() for store in (layer.keys, layer.values))


def coarse(x):
    """One scale for everything."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def fine(x):
    """One scale for each token and head."""
    whole, scales = int8_kv(x)
    return whole * scales[..., None]


queries = (
    torch.randn(32, *keys.shape[1:], generator=torch.Generator().manual_seed(0)).to(lm.device) * keys.std()
)
true = torch.stack([attend(query, keys, values) for query in queries])
for name, rounded in (("a scale for each token and head", fine), ("one scale for the tensor", coarse)):
    off = torch.stack([attend(query, rounded(keys), rounded(values)) for query in queries]) - true
    print(f"{name:>32}: attention is off by {off.norm() / true.norm():.2%}")

# %% [markdown]
# With one scale for everything, the loudest token sets the step for all others; with a scale of its own each
# token is rounded as finely as it can be. The finer scales cost four bytes a token and head.
#
# What counts is the model's answer, not one layer. The next table runs a text through **labcoder** with a
# plain and with an int8 cache and compares its predictions. And it compresses every block of the plain cache
# (as 16-bit numbers) with three *codecs*, pairs of functions that pack bytes and unpack them: zlib, its
# Huffman stage alone, and lzma. Quality is a property of a trained model: these figures are labcoder's,
# measured on labcoder, and say nothing about another model's.

# %%
codecs = kv_study.compression(tokens=1024)
show(tables.compressions(codecs, h200))
print("restored bit for bit:", all(one["exact"] for one in codecs["lossless"]))

# %% [markdown]
# Half the bytes, and a choice altered once in a while: the table says how rarely, and that is the price. Many
# services pay it with int8 or fp8 caches. (Where two KL figures stand there, they differ because a GPU computes
# in 16 bits, whose own rounding comes on top, and because the recorded text is longer.)
#
# Lossless is a different bargain: it saves about a third. The sign and exponent of neighbouring numbers
# resemble each other and compress well; the mantissas are noise and do not. So about half of the bytes stay
# as they are, whatever the codec.
#
# And it costs time. A history that comes back must be decompressed; or its text is simply **computed again**.
# labkit's engine can do either (`engine_for(lm, host=HostStore(budget))` gives the prefix cache a second level on
# the host). The same shared beginning, computed, found on the device, and brought back from the host:

# %%
held = bench.prefix(lm, text, shared=256 if big else 1024, repeats=2, host=HostStore(2**32))
show(tables.levels(lm.name, held, h200))

# %% [markdown]
# **Room, or time as well?** A small model on a slow device computes slowly and has few bytes a token: there
# unpacking can win. A GPU computes the keys and values of a 7B far faster than a processor unpacks them: there
# lossless compression on the host buys *room*, and costs time. It pays again where a history is very long (the
# attention of its prefill grows with the square), or where the device itself unpacks.

# %% [markdown]
# ## 8 · Bug hunt
#
# A prefix cache in a few lines, as one finds them. It keeps section 6's rules: a block is found by the whole
# text up to its end, token by token. It counts who holds a block, and gives out only blocks that nobody holds.
# Instead of keys and values its memory holds the tokens themselves, so that we can *read* what a row attends
# to. A opens her file and leaves; B opens his and leaves; A comes back. Run it.


# %%
class Shelf:
    """Blocks of 16 tokens, and where each beginning of a text lies."""

    def __init__(self, blocks):
        self.memory, self.known = {}, {}
        self.counts, self.free = [0] * (blocks + 1), list(range(1, blocks + 1))

    def take(self):
        """A block that nobody holds."""
        return self.free.pop(0)

    def open(self, tokens):
        """The block table of a text: what is known is found, the rest computed."""
        table = []
        for end in range(16, len(tokens) + 1, 16):
            block = self.known.get(tuple(tokens[:end]))
            if block is None:
                block = self.take()
                self.memory[block] = tokens[end - 16 : end]
                self.known[tuple(tokens[:end])] = block
            elif self.counts[block] == 0:
                self.free.remove(block)
            self.counts[block] += 1
            table.append(block)
        return table

    def close(self, table):
        """End a row; what nobody holds is free, and can still be found."""
        for block in table:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.free.append(block)


def reads(shelf, tokens):
    """What a row with this text attends to; the row ends at once."""
    table = shelf.open(tokens)
    shelf.close(table)
    return [token for block in table for token in shelf.memory[block]]


hers, his = text[:64], text[5000:5064]
shelf = Shelf(blocks=6)
print("A reads her own file:", reads(shelf, hers) == hers)
print("B reads his own file:", reads(shelf, his) == his)
again = reads(shelf, hers)
print(f"A, back again: all her tokens were found. She reads\n{'─' * 60}\n{lm.decode(again)}\n{'─' * 60}")
print(f"and should read\n{'─' * 60}\n{lm.decode(hers)}\n{'─' * 60}")

# %% [markdown]
# A hit rate to be proud of, every token compared, and A reads B's text. Nothing crashed, and a test that sends
# the same prompt twice passes. What is wrong? Decide before you read on.
#
# <details><summary>What is wrong?</summary>
#
# When B needed more blocks than had never been used, he was given some of A's: free ones, rightly. They were
# overwritten. But `known` went on saying that A's text lies there. The tokens that the look-up compares are
# those of the *key*, not those that the block holds now.
#
# </details>
#
# Repaired, in one line: whoever takes a block out of the free ones **unpublishes** what it held.


# %%
class SafeShelf(Shelf):
    """Forgets where a text lay before its block is given out again."""

    def take(self):
        """A block that nobody holds, and that nobody can find any more."""
        block = self.free.pop(0)
        self.known = {key: place for key, place in self.known.items() if place != block}
        return block


shelf = SafeShelf(blocks=6)
for name, file in (("A", hers), ("B", his), ("A again", hers)):
    print(f"{name:>7} reads the own file: {reads(shelf, file) == file}")

# %% [markdown]
# `labkit` has this line too: its pool calls `evicted` with a block's number just before it gives the block out
# again (`labkit/cache/pool.py`). It also prefers blocks whose content nobody can ask for, and takes the end of
# a text before its beginning: without the beginning, the end cannot be found.

# %% [markdown]
# ## 9 · The rung
#
# The service of notebook 01 again: a file of about 400 tokens is open and somebody types. Now the file's
# blocks are in the paged cache, and each keystroke computes what is new.

# %%
OPEN_FILE = quality.evaluation_text("fixed")[:1300].rpartition("\n\n")[0]
TYPED = 'def main():\n    parser = argparse.ArgumentParser(description="Show the weather")\n'
cache = PagedCache(lm, blocks=80, block_size=16)


@torch.inference_mode()
def typed(prompt, count=32):
    """One request from text to text: its latency, and the tokens that were found."""
    sent, stamps = time.perf_counter(), []
    line = lm.encode(prompt)[0].tolist()
    done = found = cache.open(0, line)
    for _ in range(count):
        logits = forward(lm, cache.pack([Chunk(0, done, line[done:])]))
        cache.commit(0, line)
        done = len(line)
        line.append(int(logits[0].argmax()))
        lm.decode(line[-1:])
        stamps.append(time.perf_counter())
    memory = cache.reserved_bytes
    cache.release(0)
    return timing.Latency(sent, tuple(stamps)), found, memory


typed("x = 1\n", 4)  # warm-up
prompts = [f"{OPEN_FILE}\n\n\n{TYPED[:end]}" for end in range(len(TYPED) - 4, len(TYPED) + 1)]
first, *later = [typed(prompt) for prompt in prompts]
ttft = statistics.median(latency.ttft for latency, _, _ in later)
tpot = statistics.median(latency.tpot for latency, _, _ in later)
pace = statistics.median(len(latency.stamps) / latency.e2e for latency, _, _ in later)
print(f"first keystroke: {first[1]} tokens found, TTFT {timing.duration(first[0].ttft)}")
print(f"later ones:      {later[-1][1]} tokens found, TTFT {timing.duration(ttft)}")

# %%
ledger.add(
    "paged KV, shared prefixes",
    model=lm.name,
    device=results.device_name(str(lm.device)),
    notebook="04_cache",
    ttft=ttft,
    tpot=tpot,
    throughput=pace,
    memory=lm.weight_bytes + later[-1][2],
)
ledger.show()

# %% [markdown]
# Compare the rung with *your own* plain model, if it is there: the recorded ladder may be another machine's and
# another model's. The rung's figures are one person's: TTFT falls with the share of the prompt that was there
# before, and TPOT is that of a plain step. Memory counts the weights and the blocks of this one row. The second
# gain, several times as many rows in the same memory, does not show in a ladder of one request: it is section
# 3's.

# %%
remove(lm.model)  # the model has its own attention again

# %% [markdown]
# ## Claims checked

# %%
here = tables.Figures(
    model=lm.name,
    token_bytes=seven_token,
    contiguous=space["contiguous_bytes"],
    paged=space["paged_bytes"],
    gain=gain,
    batch=(batch[words["contiguous"]], batch[words["paged"]]),
    cold=prefix["ttft"]["cold"],
    warm=prefix["ttft"]["warm"],
    shared=prefix["shared"],
    lossless=max(one["ratio"] for one in codecs["lossless"]),
    shape=seven.like,
)
show(tables.claims(here, h200))

# %% [markdown]
# **Why they differ**
#
# - *10 GB more*: the formula is exact; "long context" is not a number. It is reached by the tokens
#   shown, over all rows together, with a KV head for each query head. A model with GQA needs a fraction of
#   it.
# - *48 → 22 GB*: the ratio is the limit over the mean length of the conversations. Ours are spread evenly up
#   to the limit, so it is a little under 2; the claim's conversations are a bit shorter. It says nothing
#   about paging itself, whose own waste is half a block a row.
# - *2.3 ×*: it needs the condition that memory limits the batch and that reading weights limits the
#   step. The gain here is measured in the same memory, on short requests under a limit of 512 tokens; the
#   recorded GPU decoded long conversations under a limit of 8k, where reading their histories limits the step.
# - *Computed once*: true, and exact. How much *time* it saves depends on what the pass waits for: nearly
#   everything where it computes, little or nothing where it waits for its launches.
# - *Losslessly compressed*: true, by about a third (the table shows what is left), measured on labcoder.
#   It buys room in the host's memory. Where a device computes fast and a token has many bytes, coming back is
#   slower than computing again.

# %% [markdown]
# ## Common misconceptions
#
# - *"The KV cache makes the answer an approximation."* It is exact: old keys and values do not change. (int8
#   is not.)
# - *"Paging makes attention slower."* A gather over blocks of some kilobytes runs near full bandwidth; see
#   section 4.
# - *"A block is found by the tokens in it."* By the whole text up to its end: the same lines behind another
#   beginning have other keys and values, and stand at other positions.
# - *"A higher hit rate is a lower latency."* It is less work. Less work is less time only where work is what
#   one waits for.
# - *"GQA makes attention cheaper to compute."* It makes the cache smaller and cheaper to *read*; each query
#   head still computes its scores.

# %% [markdown]
# ## Interview questions
#
# <details><summary>How large is the 16-bit KV cache of a 7B (32 layers, 32 KV heads of 128), 16 × 4k tokens?</summary>
#
# 2 · 32 · 32 · 128 · 2 B = 512 KiB a token; 64k tokens: 32 GiB, more than twice the weights. With 8 KV heads a
# quarter of it.
#
# </details>
# <details><summary>Why can keys and values be cached, but not queries?</summary>
#
# Later tokens ask about earlier keys and values, never about earlier queries: a query is used in its own step
# only.
#
# </details>
# <details><summary>Two requests share their first 1,000 tokens; blocks have 16. How many are found?</summary>
#
# 992: full blocks only (62 of them). The last 8 are computed again, for their block differs.
#
# </details>
# <details><summary>Why does a prefix cache evict the end of a text before its beginning?</summary>
#
# A block is of use only if everything before it is there. Evicting the beginning makes the rest unreachable;
# evicting the end costs only itself.
#
# </details>
# <details><summary>The pool is full in the middle of a decode step. What may an engine do?</summary>
#
# Evict blocks that nobody holds; then *preempt* a row: release its blocks and compute them again later (or
# move them to the host). It must not stop, nor write into somebody's block.
#
# </details>
# <details><summary>Is sharing prefixes between customers safe?</summary>
#
# The answers are, if tokens are compared. The *time* is not: a fast first token tells that somebody sent this
# text before. Engines separate tenants with a salt in the key.
#
# </details>

# %% [markdown]
# **Where this is used.** vLLM (PagedAttention and automatic prefix caching), SGLang (RadixAttention: the same
# tree), TensorRT-LLM and transformers' continuous batching all keep KV in blocks with tables. Hosted models
# sell "cached input tokens" at a discount: section 6 is why, and section 8 one way to get it wrong.
# LMCache and Mooncake move blocks to hosts and disks: section 7 is their arithmetic.
#
# **What next.** On a big GPU a thousand tokens less saved only a part of the time: it waits for its launches.
# The next notebook, `05_fuse`, makes the walks between stations shorter, and then what you saved here begins to
# show.

# %%
progress.show("04_cache")
