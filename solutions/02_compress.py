# %% [markdown]
# # 02 · A slimmer recipe
#
# Notebook 01 left us with a floor. However well all else is done, a token cannot come before the weights of
# the model have been read from memory once, and they are read again for every token. A cook who carries the
# whole larder to the stove for each dish can learn to run (later notebooks teach him). Or he can carry
# less.
#
# There are three ways to carry less. Write the same recipe in a smaller hand: **quantisation**, weights in
# 8 or 4 bits. Leave out what nobody tastes: **pruning**. Or have an apprentice learn a shorter recipe from
# the cook: **distillation**. Each of them alters what the model says, so in this notebook speed never comes
# alone: beside every gain stands its price.
#
# **After this notebook you can**
#
# - compute what a model takes in any number of bits, scales included, and what it saves in time,
# - round weights to a grid, and say what scales, groups and clipping do to the error,
# - choose between plain rounding, AWQ and int8 activations, and know what calibration is for,
# - measure which layers suffer, and spend a budget of bytes where it helps most,
# - diagnose a bad quantisation, and repair it,
# - judge what pruning and distillation bring, and what they cost.
#
# **You need** notebook 01. Sections 5 and 12 borrow the engine of the later notebooks, but none of their
# exercises. No GPU, no network. Every term is in [docs/glossary.md](../docs/glossary.md).
#
# **How long it takes.** Writing the core exercises about 25 minutes; with reading and measuring about an
# hour and a half. Exercises marked *extra* can wait.
#
# **Run cells one at a time** (Shift+Enter): *Run All* stops at the first exercise that is not done yet.
# Stuck? `check.hint("quantise")`. Later cells never depend on your answer. Run this first cell; you need
# not read it.

# %% role="setup"
import math
import statistics
from itertools import combinations

import torch
import torch.nn.functional as F

import labkit
from labkit import profile, quality, results
from labkit.batch.explore import decode_curve
from labkit.batch.request import Request
from labkit.batch.rungs import EVERYTHING, standing
from labkit.cache.paged import token_bytes
from labkit.compress import Format, linears, prune, quantize, shared_copy
from labkit.compress.budget import allocate
from labkit.compress.calibration import calibrate
from labkit.compress.distil import Settings, distil, student
from labkit.compress.distil.study import BASE
from labkit.compress.sensitivity import sensitivity
from labkit.compress.smooth import smooth
from labkit.compress.text import training_tokens
from labkit.course import calibrated, check, ledger, predict, progress, show, texts, widgets
from labkit.course.paces import paces
from labkit.course.plots import compress as plots
from labkit.course.plots import compress_models as maps
from labkit.course.plots import distil as distilling
from labkit.course.probe import Probe
from labkit.course.tables import compress as tables
from labkit.course.tables import compress_record as records

words = texts.words("02_compress")

# %% [markdown]
# The ledger so far. This notebook's rung will have less *memory*, and for the first time a figure for
# *quality*.

# %%
ledger.show()

# %% [markdown]
# The exercises of this notebook, with their minutes of writing:

# %%
progress.show("02_compress")

# %% [markdown]
# Two models may be at work here. **Speed and memory** are measured on the model that you serve. **Quality**
# is always labcoder's: an inflated 7B says what labcoder says, so its answers prove nothing about a real
# 7B. On a laptop the two are one and the same.

# %%
lm = labkit.load()
on_gpu = lm.device.type == "cuda"
own = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[lm.dtype]
coder = lm if lm.name == "labcoder" else labkit.load("labcoder", device=str(lm.device), dtype=torch.float32)
text = lm.encode(quality.evaluation_text("fixed"))[0].tolist()
h200, profiled = results.load("compress"), results.load("profile")
print(f"served: {lm.name} in {own} on {lm.device}; quality: {coder.name}")
if h200 is None:
    print(words["not_recorded"])

# %% [markdown]
# ## 1 · What a bit is worth
#
# The floor of a token is bytes ÷ bandwidth, so it falls with the bits of a weight. For the recorded 7B on
# an H200, whose weights have 16 bits (computed from the measured bandwidth; scales left out):

# %%
show(tables.floors(profiled, {"16 bits": 16, "8 bits": 8, "4 bits": 4}))

# %% [markdown]
# Half the bits, half the wait, twice the tokens, if the floor is what we wait for. And half the memory,
# which is room for rows of other users.
#
# How much memory is it really? Weights in few bits come with **scales**, one for each group of weights; you
# will see what they are for in a moment. They are counted in.

# %% [markdown]
# ### Exercise: `model_bytes` · core, 3 minutes
#
# A small case: 10 weights of 4 bits in groups of 4, with scales of 16 bits. The groups have 4, 4 and 2
# weights, so there are 3 scales: 40 + 48 = 88 bits, 11 bytes.


# %% answer="model_bytes"
def model_bytes(parameters, bits, group, scale_bits):
    """What a model's weights take in few bits, their scales included.

    parameters: how many weights
    bits:       of one weight
    group:      weights that share a scale; the last group may not be full, and has a scale all the same
    scale_bits: of one scale

    Weights and scales are stored one bit after the other. Returns a whole number of bytes: a last byte that is not
    full counts.
    """
    ### BEGIN SOLUTION
    groups = (parameters + group - 1) // group
    return (parameters * bits + groups * scale_bits + 7) // 8
    ### END SOLUTION


# %% check="model_bytes"
check.model_bytes(model_bytes)

# %% [markdown]
# An article says that "a 7B takes about 3.5 GB at 32 bits". At how many bits does it really? And what does
# a 7B take at 4 bits, if every 128 weights share a scale of 16 bits?

# %%
predict("a 7B at 4 bits, groups of 128", None, "GB")

# %%
model_bytes = check.use("model_bytes", model_bytes)

llama = 6_738_415_616  # parameters of Llama-2-7B
precisions = {  # name → bits, weights that share a scale, bits of a scale
    "32 bits": (32, llama, 0),
    "16 bits": (16, llama, 0),
    "8 bits, a scale for 4,096": (8, 4096, 16),
    "4 bits, a scale for 128": (4, 128, 16),
    "4 bits, a scale for 32": (4, 32, 16),
    "4 bits, no scales at all": (4, llama, 0),
}
taken = {name: model_bytes(llama, *line) for name, line in precisions.items()}
predict.compare("a 7B at 4 bits, groups of 128", taken["4 bits, a scale for 128"] / 1e9, "GB")
show(tables.sizes({name: [stored] for name, stored in taken.items()}, ["Llama-2-7B"]))

# %% [markdown]
# So the article is off by a factor of eight. 3.5 GB is a 7B at **4 bits**, and only if scales cost nothing.
# (The embedding and the last projection usually keep 16 bits, which adds a little more. Of a small model
# like labcoder they are a large part: that is why it shrinks less.)

# %% [markdown]
# ## 2 · Rounding to a grid
#
# A weight in 4 bits is a whole number *n* from −7 to 7. The scale *s* says what one step is worth:
#
# $$w \approx n \cdot s \qquad s = \frac{c \cdot \max |w|}{7}$$
#
# $$n = \operatorname{clamp}(\operatorname{round}(w / s),\ -7,\ 7)$$
#
# With *clip* c = 1 the largest weight is the end of the grid. With c < 1 the grid is finer, and what lies
# beyond its end is **clipped**. (−8 would fit in 4 bits too. A *symmetric* grid leaves it out, so that 0 is
# in the middle. An *affine* one uses all 16 numbers, and stores which of them stands for 0: the **zero
# point**.)

# %% [markdown]
# ### Exercise: `quantise` · core, 6 minutes
#
# Mind three things. A row of zeros has no largest weight to divide by. Numbers beyond the grid are clamped
# *before* they become int8. And each row has its own scale, since a row holds the weights of one output.


# %% answer="quantise"
def quantise(weight, bits, clip):
    """A weight matrix in few bits: symmetric, with one scale for each row.

    weight: float tensor [rows, columns]; a row holds the weights of one output
    bits:   of one number, 2 to 8. The grid is the whole numbers from −top to top, top = 2 ** (bits − 1) − 1
    clip:   share of a row's range that its grid covers, in (0, 1]: `top` stands for clip · the row's largest |weight|

    weight ≈ number · scale, each number the nearest of the grid (an exact half may go either way). What lies beyond
    the grid takes its last number. A row of zeros has the scale 1.
    Returns tensors (numbers, scales, restored): int8 [rows, columns], [rows], and the weights that these two give
    back, [rows, columns]. Leaves weight as it is.
    """
    ### BEGIN SOLUTION
    top = 2 ** (bits - 1) - 1
    scales = clip * weight.abs().amax(dim=1) / top
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (weight / scales[:, None]).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales[:, None]
    ### END SOLUTION


# %% check="quantise"
check.quantise(quantise)

# %% [markdown]
# One row of a real matrix of labcoder, with the values that are left of it. Move the sliders: what do bits
# do, what do groups? (A *group* of a row has a scale of its own. The function below treats each group as a
# row.)

# %%
quantise = check.use("quantise", quantise)

name = "model.layers.0.self_attn.o_proj"
matrix = linears(coder)[name].weight.detach().float().cpu()
row = matrix[matrix.abs().amax(1).argmax()]  # the row with the largest weight of all


def draw(bits, group):
    """A row's weights and what is left of them at one position of the sliders."""
    _, _, restored = quantise(row.view(-1, group), bits, 1.0)
    shared = words["shared_row" if group == len(row) else "shared_group"].format(group=group)
    title = words["grid_title"].format(name=tables.short(name), bits=bits, shared=shared)
    return plots.grid(row.tolist(), restored.reshape(-1).tolist(), title)


GROUPS = (16, 32, 64, 128, len(row))
widgets.explore(
    draw, words["grid"], start={"bits": 4, "group": len(row)}, bits=(2, 3, 4, 5, 6, 8), group=GROUPS
)

# %% [markdown]
# With 4 bits and one scale for the row, a single large weight makes the grid so wide that most weights fall
# on few of its values. Each bit more halves the error. Smaller groups help too, since a large weight then
# spoils its own group only.
#
# **Clipping** is the third remedy: let the few largest weights be wrong, so that all others are finer. The
# error of this whole matrix in 4 bits, over the clip:

# %%
for clip in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
    _, _, restored = quantise(matrix, 4, clip)
    print(f"clip {clip:.1f}: the weights are off by {(restored - matrix).norm() / matrix.norm():.1%}")

# %% [markdown]
# ### Exercise: `group_error` · extra, 6 minutes
#
# How much do groups help? Write the error as a function of the group. The last group of a row may be
# narrower.


# %% answer="group_error"
def group_error(weight, group):
    """How much rounding to 4 bits alters a matrix, when every `group` columns of a row share a scale.

    weight: float tensor [rows, columns]
    group:  columns that share a scale: the first `group` of a row, the next `group`, … The last group of a row has
            what is left, perhaps fewer

    Within a group: scale = largest |weight| / 7, and weight ≈ number · scale with the nearest number of −7 … 7.
    A group of zeros stays zeros.
    Returns one number, the relative RMS error: the root of mean((rounded − weight)²) ÷ mean(weight²), both means
    over the whole matrix. Leaves weight as it is.
    """
    ### BEGIN SOLUTION
    parts = []
    for part in weight.split(group, dim=1):
        scale = part.abs().amax(dim=1, keepdim=True) / 7
        scale = torch.where(scale > 0, scale, 1.0)
        parts.append((part / scale).round() * scale)
    rounded = torch.cat(parts, dim=1)
    return math.sqrt((rounded - weight).square().mean() / weight.square().mean())
    ### END SOLUTION


# %% check="group_error"
check.group_error(group_error)

# %%
group_error = check.use("group_error", group_error)

group_names = [str(group) for group in GROUPS[:-1]] + [words["row"]]
chosen = {name: linears(coder)[name].weight.detach().float().cpu() for name in list(linears(coder))[3:7:3]}
noise = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
lines = {tables.short(name): weight for name, weight in chosen.items()} | {words["noise"]: noise}
found = {
    shown: [group_error(weight, min(group, weight.shape[1])) for group in (*GROUPS[:-1], 10**6)]
    for shown, weight in lines.items()
}
widgets.show_figure(plots.errors(group_names, found), words["errors"])
for group in GROUPS[:-1]:
    print(f"groups of {group:3}: {4 + 16 / group:.3f} bits a weight, its share of a 16-bit scale included")

# %% [markdown]
# Smaller groups, smaller errors, but also more scales: most people stop between 128 and 32. In small groups
# real weights are like random numbers. Where one scale serves a whole row, the few large ones that a real
# row has cost extra.

# %% [markdown]
# ## 3 · Two numbers in a byte
#
# No computer addresses half a byte. So two 4-bit numbers share one, and whoever multiplies with them takes
# them apart first, in registers. In which order they lie is a convention, and getting it wrong is a
# classic: the model runs, and talks nonsense.

# %% [markdown]
# ### Exercise: `pack_int4` · core, 4 minutes
#
# Here byte *i* of a row holds column *i* in its low four bits, and column *i + half* in its high ones. So
# neighbouring bytes unpack to neighbouring columns, without shuffling.


# %% answer="pack_int4"
def pack_int4(numbers):
    """Two numbers of 4 bits in each byte.

    numbers: int8 tensor [rows, columns], each −8 … 7

    A row becomes half = (columns + 1) // 2 bytes. Each number is stored as number + 8, so as 0 … 15.
    Byte i of a row holds column i in its low four bits and column i + half in its high four bits. With an odd number
    of columns the last byte's high bits are spare, and may hold anything.
    Returns a uint8 tensor [rows, half]. Leaves numbers as it is.
    """
    ### BEGIN SOLUTION
    stored = (numbers + 8).to(torch.uint8)
    half = (numbers.shape[1] + 1) // 2
    low = stored[:, :half]
    high = F.pad(stored[:, half:], (0, numbers.shape[1] % 2))  # one column to the right where it is odd
    return low | (high << 4)
    ### END SOLUTION


# %% check="pack_int4"
check.pack_int4(pack_int4)

# %% [markdown]
# ### Exercise: `unpack_int4` · extra, 3 minutes


# %% answer="unpack_int4"
def unpack_int4(packed, columns):
    """The numbers that `pack_int4` put into bytes.

    packed:  uint8 tensor [rows, half], half = (columns + 1) // 2. Byte i of a row holds column i in its low four
             bits and column i + half in its high four bits, each as number + 8
    columns: of the numbers; where it is odd, the high bits of a row's last byte hold anything

    Returns an int8 tensor [rows, columns]. Leaves packed as it is.
    """
    ### BEGIN SOLUTION
    stored = torch.cat([packed & 15, packed >> 4], dim=1)
    return stored[:, :columns].to(torch.int8) - 8
    ### END SOLUTION


# %% check="unpack_int4"
check.unpack_int4(unpack_int4)

# %% [markdown]
# There and back again, with the matrix from above:

# %%
pack_int4, unpack_int4 = check.use("pack_int4", pack_int4), check.use("unpack_int4", unpack_int4)

numbers, scales, restored = quantise(matrix, 4, 1.0)
packed = pack_int4(numbers)
same = bool((unpack_int4(packed, numbers.shape[1]) == numbers).all())
half = packed.shape[1]
print(
    f"columns 0 and {half} of row 0: {numbers[0, 0]:d} and {numbers[0, half]:d}; the byte: {packed[0, 0]:08b}"
)
print(f"{matrix.nbytes:,} B in 32 bits, {packed.nbytes:,} B packed, and all numbers come back: {same}")

# %% [markdown]
# ## 4 · A whole model in few bits
#
# `labkit.compress.quantize` does to every matrix of the layers what you have just done to one. The
# embedding and the last projection keep their precision.
#
# What does it cost? The loss on a text that the model has never seen answers that, as **perplexity**: the
# number of equally likely tokens that would surprise as much. A smaller set of pages is enough for a
# comparison if both models read the *same* pages; the interval in brackets says what is left of chance.
# **KL divergence** and **the same token** compare the two models token by token, and see damage that a mean
# hides.
#
# By how many per cent does perplexity rise when all of labcoder's matrices are simply rounded to 4 bits, in
# groups of 128?

# %%
predict("perplexity in 4 bits, plain rounding", None, "% worse")

# %%
probe = Probe(coder)
small = {scheme: quantize(coder, scheme) for scheme in ("int8", "fp8", "int4")}
small[words["groups_of"].format(group=32)] = quantize(coder, Format("int4", 32, symmetric=False))
read = {"plain": probe.reference} | {scheme: probe.read(slim) for scheme, slim in small.items()}
stored = {"plain": coder.weight_bytes} | {scheme: slim.weight_bytes for scheme, slim in small.items()}
predict.compare("perplexity in 4 bits, plain rounding", 100 * read["int4"].worse.mean, "% worse")
show(tables.quality({name: (stored[name], read[name]) for name in read}))

# %% [markdown]
# (labcoder on 10 short pages, measured here. int8: a scale for each row. int4: affine, groups of 128. fp8
# is a float of 8 bits, finer near 0 and coarser at its ends; at equal bits int8 with its scale per row is
# closer here.)
#
# Eight bits are nearly free: an interval that touches 0 means that these pages cannot tell the two models
# apart. Four bits are not. A small model has less to spare than a large one: a 7B in 4 bits suffers far
# less, so take the *order* of these figures with you, not their size.

# %% [markdown]
# ## 5 · Is it faster?
#
# A quarter of the bytes, four times as fast? Guess for *this machine*: int8 weights, one user. (They are
# multiplied by activations in full precision: **weight-only**, or W8A16 with activations in 16 bits.)

# %%
predict("int8 weights against plain, one row", None, "× as fast")

# %%
slimmed = small if lm is coder else {scheme: quantize(lm, scheme) for scheme in ("int8", "fp8", "int4")}
slim = {own: lm} | {scheme: slimmed[scheme] for scheme in ("int8", "int4")} | {"w8a8": quantize(lm, "w8a8")}
pace = paces(slim, text[:128], new=64 if on_gpu else 6)
predict.compare("int8 weights against plain, one row", pace[own] / pace["int8"], "× as fast")
show(tables.speeds(pace, {name: model.weight_bytes for name, model in slim.items()}, own))

# %% [markdown]
# (Measured here, through the engine of the later notebooks with everything on; *w8a8* comes in section 7.)
#
# **An honest loss, on a processor.** The weights arrive in fewer bytes, and then they have to become floats
# again before they can be multiplied. A GPU kernel does that in registers, while it waits for memory
# anyway. Without such a kernel, each step unpacks the whole model into memory, and moves *more* bytes than
# before. That is no peculiarity of processors: a framework's default path may do the same on a GPU. Fewer
# bits are only *permission* to be faster. Somebody has to write the kernel.
#
# With kernels, it looks like this. The table that articles print, recorded on an H200: one request at a
# time through the engine, beside ready-made roads (bitsandbytes quantises while a model loads; torchao
# quantises for `torch.compile`). The last column is **labcoder's** quality, measured above.

# %%
record_table = records.precisions(h200, {h200["figures"]["own"]: read["plain"], **read}) if h200 else None
show(record_table) if record_table else print(words["not_recorded"])

# %% [markdown]
# One row waits for weights. What about many? With more rows each weight is used more often for one reading,
# and at some batch the step waits for arithmetic (the ridge of notebook 01). Then fewer bytes no longer
# help, and unpacking is extra work.

# %%
sizes = (1, 4, 16, 64, 256) if on_gpu else (1, 4, 16)
measured = {
    name: decode_curve(slim[name], text, sizes, rounds=1, steps=4, graphs=on_gpu)[0] for name in (own, "int8")
}
widgets.show_figure(plots.crossing(own, measured, f"{lm.name}, measured here"), words["crossing"])

# %%
recorded_curve = records.curve(h200) if h200 else None
if recorded_curve:
    theirs, curves = recorded_curve
    title = f"{h200['figures']['model']}, {h200['badge']}"
    widgets.show_figure(plots.crossing(theirs, curves, title), words["crossing"])
    for name in curves:
        if name != theirs:
            rows = records.crossing(theirs, curves, name)
            print(words["crosses" if rows else "never_crosses"].format(name=name, rows=rows))
else:
    print(words["not_recorded"])

# %% [markdown]
# So weight-only formats are for **few rows**: a laptop, a chat of one, a decode step that waits for memory.
# (On this machine's processor the line may never rise above 1: then the int8 model is for memory, not for
# speed.)

# %% [markdown]
# ## 6 · Rounding with an eye on the input: AWQ
#
# All errors of weights are equal, says plain rounding. They are not. A weight is multiplied by an input,
# and some inputs are always large. Run a text through the model, and watch what reaches a layer: that is
# **calibration**.

# %%
good = calibrate(coder, tokens=3072, rows=1024)
spread = {name: float(good[name].mean_abs.max() / good[name].mean_abs.median()) for name in linears(coder)}
watched = max(spread, key=spread.get)  # the layer whose input is most uneven
means = good[watched].mean_abs
widgets.show_figure(
    plots.channels(means.tolist(), words["channels_title"].format(name=tables.short(watched))),
    words["channels"],
)
print(f"the largest channel is {spread[watched]:.0f} × the median one")

# %% [markdown]
# An error in a column whose input is always large hurts most. **AWQ** (activation-aware weight
# quantisation) multiplies such a column by $s > 1$ *before* rounding, and divides by it afterwards, so that
# it is rounded in finer steps:
#
# $$W x = \left(W \operatorname{diag}(s)\right) \left(\operatorname{diag}(s)^{-1} x\right)$$
#
# $$s_k = (\text{mean } |x_k|)^r$$
#
# In exact arithmetic nothing changes, and the division is not even a step of its own: it is folded into the
# layer before. How strong should it be? Ratio r = 0 is plain rounding. A large r makes the strong columns
# so large that they set the scale for all others. One searches.

# %% [markdown]
# ### Exercise: `awq_scale` · core, 7 minutes
#
# For every ratio: scale the columns, round, divide again, and compare the layer's **outputs** with the
# right ones.


# %% answer="awq_scale"
def awq_scale(weight, inputs, ratios):
    """Which scale of the columns makes rounding hurt least (AWQ).

    weight: float tensor [outputs, columns]
    inputs: float tensor [tokens, columns], seen while calibrating. The layer computes inputs @ weight.T
    ratios: list of numbers to try, in any order; 0 is plain rounding

    The strength of a column is the mean |input| in it, at least 1e-4. For each ratio every column has the scale
    strength ** ratio: the weight's column is multiplied by it, all is rounded (round_int4), and the column is divided
    by it again. The error is that of the layer's outputs: root of the sum of squared differences ÷ root of the sum of
    squares of the right outputs.
    Returns (best, errors): the ratio with the smallest error, and a list of the error of each ratio, in their order.
    Leaves its arguments as they are.
    """

    def round_int4(matrix):
        """Rounded to 4 bits with one scale a row, and back: what you wrote above."""
        step = (matrix.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        return (matrix / step).round() * step

    ### BEGIN SOLUTION
    strength = inputs.abs().mean(dim=0).clamp(min=1e-4)  # [columns]
    right = inputs @ weight.T
    errors = []
    for ratio in ratios:
        scale = strength**ratio
        rounded = round_int4(weight * scale) / scale
        errors.append(float((inputs @ rounded.T - right).norm() / right.norm()))
    return ratios[errors.index(min(errors))], errors
    ### END SOLUTION


# %% check="awq_scale"
check.awq_scale(awq_scale)

# %% [markdown]
# On a real matrix, with the inputs of two calibrations: one on source code, the other on a file of blank
# lines, as happens when somebody calibrates on whatever lay about. Both are judged on the inputs that the
# service will see.

# %%
awq_scale = check.use("awq_scale", awq_scale)

poor = calibrate(coder, "\n" * 5000, tokens=2048, rows=1024)
tried = [step / 10 for step in range(11)]
weight = linears(coder)[watched].weight.detach().float().cpu()
seen = good[watched].rows.float().cpu()[:256]
right = seen @ weight.T


def judged(strength):
    """Errors on the good inputs, with scales that another calibration would choose."""
    for ratio in tried:
        scale = strength.clamp(min=1e-4) ** ratio
        _, _, restored = quantise(weight * scale, 4, 1.0)
        yield float((seen @ (restored / scale).T - right).norm() / right.norm())


best, errors = awq_scale(weight, seen, tried)
lines = {words["good"]: errors, words["poor"]: list(judged(poor[watched].mean_abs.float().cpu()))}
print(f"calibrated on code, ratio {best} is best: error {min(errors):.2%}, plain rounding {errors[0]:.2%}")
widgets.show_figure(plots.ratios(tried, lines, words["output_error"]), words["ratios"])

# %% [markdown]
# Now every layer: first the scales, then a clip for each group. Four bits, groups of 128, the same bytes
# for all of them. (A coarse search, so that it takes seconds.)

# %%
INT4, INT8 = Format("int4", 128, symmetric=False), Format("int8")
searched = {
    kind: calibrated.search(coder, seen_by, INT4) for kind, seen_by in (("good", good), ("poor", poor))
}
awq = {kind: calibrated.rounded(coder, found, INT4) for kind, found in searched.items()}
judgements = {words["rtn"]: read["int4"]} | {
    words[f"awq_{kind}"]: probe.read(model) for kind, model in awq.items()
}
bars = {
    name: [100 * value for value in (one.worse.mean, one.worse.low, one.worse.high)]
    for name, one in judgements.items()
}
widgets.show_figure(plots.bars(bars, words["ppl_axis"], first=words["rtn"]), words["awq_bars"])

# %% [markdown]
# Calibrated on code, most of the damage is gone, for no byte and no microsecond: the format is the same,
# and so is the kernel. (So the claim that AWQ is also *faster* compares it with 16 bits, or with another
# kernel.) Calibrated on blank lines, nothing is gained at all, or worse: the search did its best for inputs
# that never come. How much is due to the scales and how much to the clips differs from model to model; in
# labcoder it is nearly all the clips.

# %% [markdown]
# ## 7 · Whole numbers all the way: int8 activations
#
# Weight-only saves bytes, and multiplies in floats. If the *inputs* are rounded to int8 too (**W8A8**), the
# product is one of whole numbers, and GPUs have units that do it at twice the rate of 16 bits. That pays
# where arithmetic is what one waits for: long prompts, many rows.
#
# Weights lie still; inputs are new in every step. So their scale is computed on the spot, one for each row
# (**dynamic**). One scale for all rows would be simpler, and it would let a neighbour's loud token change
# *your* answer.

# %% [markdown]
# ### Exercise: `int8_linear` · extra, 7 minutes


# %% answer="int8_linear"
def int8_linear(x, weight, weight_scales):
    """A linear layer computed in whole numbers (W8A8).

    x:             float tensor [rows, inputs], a row for each token
    weight:        int8 tensor [outputs, inputs]
    weight_scales: float tensor [outputs]: output j's weights are weight[j] · weight_scales[j]

    Round x to −127 … 127 with one scale for each row, largest |number| of the row ÷ 127, so that a row's result
    depends on no other row. Multiply the whole numbers; their sums need 32 bits. Then put the scales back.
    A row of zeros gives zeros.
    Returns a float tensor [rows, outputs]. Leaves its arguments as they are.
    """
    ### BEGIN SOLUTION
    scales = x.abs().amax(dim=1, keepdim=True) / 127  # [rows, 1]
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (x / scales).round().to(torch.int32)
    return (numbers @ weight.to(torch.int32).T) * scales * weight_scales
    ### END SOLUTION


# %% check="int8_linear"
check.int8_linear(int8_linear)

# %% [markdown]
# The layer of labcoder whose inputs have the worst outliers; real inputs. How far are its outputs off?

# %%
int8_linear = check.use("int8_linear", int8_linear)

peaks = {name: float(good[name].max_abs.max() / good[name].max_abs.median()) for name in linears(coder)}
spiky = max(peaks, key=peaks.get)
weight = linears(coder)[spiky].weight.detach().float().cpu()
x = good[spiky].rows.float().cpu()[:64]
numbers, scales, restored = quantise(weight, 8, 1.0)
loud = x.clone()
loud[0] *= 30  # a neighbour


def one_scale(rows):
    """All rows rounded to int8 with one scale."""
    step = rows.abs().max() / 127
    return (rows / step).round() * step @ restored.T


def off(result, right):
    """Relative error of outputs, the first row left out."""
    return f"{(result - right)[1:].norm() / right[1:].norm():.2%}"


right = x @ weight.T
print(f"{tables.short(spiky)}: its largest channel reaches {peaks[spiky]:.0f} × as far as the median one")
print("weights in int8 alone:                 ", off(x @ restored.T, right))
print("inputs too, a scale for each row:      ", off(int8_linear(x, numbers, scales), right))
print("inputs too, one scale for all:         ", off(one_scale(x), right))
print("… and row 0 is 30 × louder, each row's:", off(int8_linear(loud, numbers, scales), right))
print("… and row 0 is 30 × louder, one scale: ", off(one_scale(loud), right))

# %% [markdown]
# Within a row, one channel that is much larger than the others still makes the grid coarse. **SmoothQuant**
# moves a part of such a channel's size into the weights, by the same trick as AWQ, with a scale from both
# sides: the largest input and the largest weight of each channel.

# %%
smoothed = calibrated.rounded(coder, smooth(coder, good), INT8, activations="int8")
eight = {"w8a8": quantize(coder, "w8a8"), words["smooth"]: smoothed}
read |= {name: probe.read(model) for name, model in eight.items()}
stored |= {name: model.weight_bytes for name, model in eight.items()}
show(tables.quality({name: (stored[name], read[name]) for name in ("int8", *eight)}))

# %% [markdown]
# In a model as small as labcoder no channel is wild enough for smoothing to matter much: compare the
# intervals. In models of several billion parameters a few channels are a hundred times larger than the
# rest, and W8A8 without smoothing breaks them. Know the remedy, and measure whether you need it.

# %% [markdown]
# ## 8 · Which layers suffer?
#
# Round *one* matrix, leave all others as they are, and measure how far the model's output moves. Do so for
# each. There are 28 matrices in labcoder. If all did the same damage, the worst would do 4 % of it. What
# share does it do?

# %%
predict("the worst matrix's share of the damage", None, "%")

# %%
felt = sensitivity(coder, [INT4, INT8], tokens=128)
hurt = {each.module: each.kl for each in felt if each.format == INT4}
predict.compare("the worst matrix's share of the damage", 100 * max(hurt.values()) / sum(hurt.values()), "%")
places = {name: tables.short(name).split() for name in hurt}
layer_names, kinds = (list(dict.fromkeys(place[axis] for place in places.values())) for axis in (0, 1))
widgets.show_figure(
    plots.sensitivity(layer_names, kinds, {tuple(places[name]): kl for name, kl in hurt.items()}),
    words["sensitivity"],
)
print(f"alone they do {1e3 * sum(hurt.values()):.0f} millinats of damage in all,")
print(f"all together, on other pages, {1e3 * read['int4'].kl:.0f}")

# %% [markdown]
# A few dark fields, and many pale ones. So it is a waste to treat all alike: keep the few at 8 bits
# (**mixed precision**), and let the many have 4. And since the damages of single matrices add up roughly,
# choosing is a sum: most damage taken away for a budget of bytes. That is the *knapsack problem*.

# %% [markdown]
# ### Exercise: `keep_precise` · extra, 9 minutes
#
# `combinations(layers, count)` gives all choices of `count` layers. Beware of the obvious short cut, taking
# the most damaging first: a large one may use up the bytes of two others that together would do more.


# %% answer="keep_precise"
def keep_precise(damage, sizes, budget):
    """Which layers to keep at high precision when there are bytes for some of them.

    damage: list of numbers > 0: how much worse the model gets by rounding layer i. Damages add up
    sizes:  list of whole numbers: bytes that it costs to keep layer i as it is; hundreds of thousands each
    budget: bytes that may be spent in all

    Returns a list of layer numbers, from 0, in any order. Their sizes together are at most the budget, and no other
    such choice takes away more damage. Of several equally good choices any will do. There are at most 12 layers, so
    all 4,096 choices can be tried. Leaves its arguments as they are.
    """
    ### BEGIN SOLUTION
    layers, best, most = range(len(sizes)), [], 0.0
    for count in range(1, len(sizes) + 1):
        for chosen in combinations(layers, count):
            saved = sum(damage[layer] for layer in chosen)
            if saved > most and sum(sizes[layer] for layer in chosen) <= budget:
                best, most = list(chosen), saved
    return best
    ### END SOLUTION


# %% check="keep_precise"
check.keep_precise(keep_precise)

# %% [markdown]
# Twelve parts of labcoder: in each layer the projections into attention, the one out of it, and the MLP.
# The budget: what *uniform* groups of 32 would cost more than groups of 128. Equal bytes, then. Which is
# better?

# %%
keep_precise = check.use("keep_precise", keep_precise)

PARTS = {"q": "in", "k": "in", "v": "in", "o": "out", "gate": "MLP", "up": "MLP", "down": "MLP"}
part_of = {name: f"{layer} {PARTS[kind]}" for name, (layer, kind) in places.items()}
parts = list(dict.fromkeys(part_of.values()))
saved, extra = dict.fromkeys(parts, 0.0), dict.fromkeys(parts, 0)
for each in felt:
    sign = 1 if each.format == INT4 else -1
    saved[part_of[each.module]] += sign * each.kl
    extra[part_of[each.module]] -= sign * each.bytes
budget = stored[words["groups_of"].format(group=32)] - stored["int4"]
kept = [parts[number] for number in keep_precise(list(saved.values()), list(extra.values()), budget)]
print("kept at 8 bits:", ", ".join(kept))
plan = {name: INT8 if part in kept else INT4 for name, part in part_of.items()}
mixed = quantize(coder, "int4", plan=plan)
by_hand = {
    words["groups_of"].format(group=32): (
        stored[words["groups_of"].format(group=32)],
        read[words["groups_of"].format(group=32)],
    ),
    words["your_mix"]: (mixed.weight_bytes, probe.read(mixed)),
}
show(tables.quality(by_hand))

# %% [markdown]
# Matrix by matrix there are 2 to the power of 28 choices, too many to try. `labkit.compress.budget.allocate` finds the
# best by dynamic programming. Several budgets, beside uniform groups of 128 and 32:

# %%
alike = {
    "g128": (small["int4"], read["int4"]),
    "g32": (small[words["groups_of"].format(group=32)], read[words["groups_of"].format(group=32)]),
}
floor_bytes, top_bytes = (sum(each.bytes for each in felt if each.format == one) for one in (INT4, INT8))
mixes = {}
for share in (0.1, 0.25):
    plan = allocate(felt, int(floor_bytes + share * (top_bytes - floor_bytes)))
    name = words["at_8"].format(count=sum(one == INT8 for one in plan.values()))
    mixes[name] = (model := quantize(coder, "int4", plan=plan), probe.read(model))


def spots(models):
    """Models as points of the picture."""
    for name, (model, one) in models.items():
        yield plots.Spot(name, model.weight_bytes, one.worse.mean, one.worse.low, one.worse.high)


uniform_line, mixed_line = list(spots(alike)), list(spots(mixes))
widgets.show_figure(
    plots.budget(uniform_line, mixed_line, [words["uniform"], words["mixed"]]), words["budget"]
)

# %% [markdown]
# At equal bytes the mixture lies below. Where there is a choice between finer groups for all and more bits
# for a few, the few are the better buy, at least in this model.
#
# A few pages leave wide intervals. All of these formats and methods on a text more than twenty times as long,
# recorded:

# %%
quality_table = records.qualities(h200) if h200 else None
show(quality_table) if quality_table else print(words["not_recorded"])

# %% [markdown]
# ## 9 · A bad quantisation, and three remedies
#
# A colleague hands over a 4-bit model. "The clips were searched on a calibration text," he says; which one,
# he has forgotten. It is small, it loads, it runs. Users complain. You have the original, so you can find
# out *where* it goes wrong: `blame` puts his matrices into the original, one at a time.

# %%
his = calibrated.search(coder, poor, INT4, scales=False)  # his text was a file of blank lines
colleague = calibrated.rounded(coder, his, INT4)
his_reading = probe.read(colleague)
print("perplexity above the plain model's:", tables.worse(his_reading))
blamed = calibrated.blame(coder, colleague)
show(tables.damage(blamed))

# %% [markdown]
# Articles name three remedies. **Protect** the layers that suffer: leave them as they were. **Mix**
# precisions: give them 8 bits instead of 4. **Calibrate again**, on text like that of the service. Each by
# itself, and the last two together:

# %%
worst = list(blamed)[:4]
in_eight = dict.fromkeys(worst, INT8)
remedies = {
    "protect": calibrated.rounded(coder, his, INT4, dict.fromkeys(worst)),
    "mix": calibrated.rounded(coder, his, INT4, in_eight),
    "again": awq["good"],
    "both": calibrated.rounded(coder, searched["good"], INT4, in_eight),
}
repaired = {"colleague": his_reading, "again": judgements[words["awq_good"]]}
repaired |= {name: probe.read(remedies[name]) for name in ("protect", "mix", "both")}
models = {"colleague": colleague} | remedies
show(
    tables.quality(
        {words[name]: (model.weight_bytes, repaired[name]) for name, model in models.items()}, "remedy"
    )
)

# %% [markdown]
# Read price and gain together. Protecting costs the most bytes; 8 bits do about as well for a fraction of them.
# Calibrating again costs nothing at all afterwards, so it comes first. And the remedies add up. (Where
# perplexity cannot tell two of them apart, because the intervals overlap, KL often can: it compares every
# token with the original's.)

# %% [markdown]
# ## 10 · Leaving things out: pruning
#
# "Near-zero weights can be removed freely", one reads. Set the smallest weights of every matrix to zero
# (**unstructured** pruning, by magnitude), and look at everything: quality, bytes, speed.

# %%
rows = []
for share in (0.1, 0.5):
    sparse, counted = prune.magnitude(coder, share)
    rows.append((share, counted, probe.read(sparse)))
show(tables.zeros(rows))

# %% [markdown]
# A tenth may go with hardly any harm; half may not, without training. And what is saved? A matrix full of
# zeros takes the same bytes, and is read and multiplied like any other (its speed is measured below). A
# format that leaves zeros out has to say where the others stand: stored as a value and a column each, half
# the weights take as much as all of them did.
#
# For speed, whole rows and columns must go, so that the matrices are really smaller: attention **heads**,
# and **neurons** of the MLP. Which ones? Those without which the loss would hardly change. One backward
# pass tells it for all of them at once: to first order, setting an activation *a* to zero changes the loss
# by $-a \cdot \partial L / \partial a$.

# %% [markdown]
# ### Exercise: `taylor_importance` · extra, 4 minutes
#
# Sum over a sample's tokens *before* you take the absolute value: a neuron that helps one token and harms
# another by the same amount may go. Then average over samples.


# %% answer="taylor_importance"
def taylor_importance(activations, gradients):
    """How much the loss would change without a neuron, to first order.

    activations: float tensor [samples, tokens, neurons]: what each neuron put out
    gradients:   the same shape: derivative of a sample's loss by that activation

    Setting a neuron to 0 changes a sample's loss by about −Σ activation · gradient, summed over the sample's tokens.
    Its importance is the size (absolute value) of that change, averaged over samples.
    Returns a tensor [neurons]. Leaves its arguments as they are.
    """
    ### BEGIN SOLUTION
    change = (activations * gradients).sum(dim=1)  # [samples, neurons]
    return change.abs().mean(dim=0)
    ### END SOLUTION


# %% check="taylor_importance"
check.taylor_importance(taylor_importance)

# %% [markdown]
# The neurons of one layer, from real activations and gradients:

# %%
taylor_importance = check.use("taylor_importance", taylor_importance)

train = training_tokens(coder, 24_000)
samples = train[: 4 * 256].view(4, 256).to(coder.device)
caught = []
down = coder.model.get_decoder().layers[1].mlp.down_proj
hook = down.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
logits = coder.model(samples, use_cache=False).logits[:, :-1].float()
hook.remove()
losses = F.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten(), reduction="none").view(4, -1).mean(1)
(slopes,) = torch.autograd.grad(losses.sum(), caught)
mine = taylor_importance(caught[0].detach().float().cpu(), slopes.float().cpu())
ranked = mine.sort(descending=True).values
print(
    f"{len(mine):,} neurons; the upper half has {ranked[: len(mine) // 2].sum() / ranked.sum():.0%} of all importance"
)

# %% [markdown]
# Now all layers. A fifth of the weights of heads and neurons goes, chosen by gradients, by the size of the
# weights, or at random. How many times as high is perplexity then, chosen by gradients?

# %%
predict("perplexity after the cut, by gradients", None, "×")

# %%
left = prune.counts(coder, 0.2)
cut = {}
for kind in ("taylor", "magnitude", "random"):
    scores = prune.importance(coder, train, kind, sequences=12)
    cut[kind] = prune.shrink(coder, *prune.choose(scores, left))
hurt = {words[f"by_{kind}"]: probe.read(model) for kind, model in cut.items()}
plain_perplexity = read["plain"].perplexity
predict.compare(
    "perplexity after the cut, by gradients", hurt[words["by_taylor"]].perplexity / plain_perplexity, "×"
)
bars = {
    name: [plain_perplexity * (1 + value) for value in (one.worse.mean, one.worse.low, one.worse.high)]
    for name, one in hurt.items()
}
bars = {words["whole"]: (plain_perplexity,) * 3} | bars
widgets.show_figure(plots.bars(bars, words["perplexity_axis"], first=words["whole"]), words["cut_bars"])

# %% [markdown]
# Gradients choose better than chance. (And the size of the weights? A neuron with small weights may be
# one that all others rely on.) But all three models are hurt, and so pruning is followed by **recovery**: a
# short training whose learning rate falls. Usually from 1e-3 to 1e-4; the few steps here would only be
# thrown off by so high a rate, so they start lower:

# %%
steps = 40 if on_gpu else 5
prune.recover(cut["taylor"], train, steps=steps, batch=4, length=128, lr=(1e-4, 1e-5), warmup=1)
again = probe.read(cut["taylor"])
times = paces({"whole": coder, "zeros": sparse, "pruned": cut["taylor"]}, text[:64], rounds=4)
print(f"perplexity: {plain_perplexity:.1f} whole, {hurt[words['by_taylor']].perplexity:.1f} cut,")
print(f"{again.perplexity:.1f} after {steps} steps of training")
print(f"{coder.weight_bytes / 1e6:.1f} MB → {cut['taylor'].weight_bytes / 1e6:.1f} MB")
print(f"a decode step is {times['whole'] / times['pruned']:.2f} × as fast,")
print(f"and with half of all weights set to zero, {times['whole'] / times['zeros']:.2f} ×")

# %% [markdown]
# Recorded: a third cut, more steps, several seeds (mean, and the lowest and highest):

# %%
pruned_record = results.load("prune")
prune_table = records.pruning(pruned_record) if pruned_record else None
show(prune_table) if prune_table else print(words["no_prune"])

# %% [markdown]
# A claim says: prune by gradients, fine-tune with a falling rate, and *repeat until the speed target is
# met*. `prune.until` does so, and stops at a floor of quality as well. Without that floor the loop always
# succeeds.

# %% [markdown]
# ## 11 · Learning from the cook: distillation
#
# A small model that is trained on text learns from each place which token came. A small model that is
# trained on a large one learns from each place how likely *every* token was: that after `for i in` the word
# `range` was likely, `enumerate` too, and `import` out of the question. That is far more to learn from a
# line of code.
#
# A **temperature** T above 1 softens both distributions, so that the unlikely tokens count as well. The
# loss is the KL divergence of the two, times T².

# %% [markdown]
# ### Exercise: `distil_loss` · core, 5 minutes
#
# Some of a teacher's logits may be −∞ (a token that cannot come). Then p is 0 and log p is −∞, and their
# product is NaN, unless you take care.


# %% answer="distil_loss"
def distil_loss(student, teacher, temperature):
    """How far a student's distributions are from its teacher's, both softened by a temperature.

    student, teacher: logits, float tensors [tokens, vocabulary]. Some of the teacher's may be −inf (a token that
                      cannot come); the student's are finite
    temperature:      T > 0; a softened distribution is softmax(logits / T)

    For each token KL(teacher ‖ student) = Σ p · (log p − log q) over the vocabulary, with p the teacher's and q the
    student's softened probabilities; where p is 0 a term is 0. The loss is the mean over tokens, times T² (without it,
    gradients would shrink as T grows).
    Returns a tensor with no axes, through which gradients reach student. Leaves its arguments as they are.
    """
    ### BEGIN SOLUTION
    log_p = torch.log_softmax(teacher / temperature, dim=-1)
    log_q = torch.log_softmax(student / temperature, dim=-1)
    apart = torch.where(log_p == -math.inf, 0.0, log_p - log_q)  # 0 · inf would be NaN
    return temperature**2 * (log_p.exp() * apart).sum(dim=-1).mean()
    ### END SOLUTION


# %% check="distil_loss"
check.distil_loss(distil_loss)

# %% [markdown]
# What a teacher says at one place, at three temperatures; and does a gradient reach the student?

# %%
distil_loss = check.use("distil_loss", distil_loss)

with torch.no_grad():
    said = coder.model(coder.encode("import os\n\nfor i in"), use_cache=False).logits[0, -1].float().cpu()
for temperature in (1, 1.5, 2):
    chances = (said / temperature).softmax(-1)
    best = chances.topk(5)
    likely = ", ".join(
        f"{coder.decode([token])!r} {chance:.1%}"
        for token, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    print(f"T = {temperature}: {likely}")
logits = torch.randn(4, 50, requires_grad=True)
print("a gradient reaches the student:", distil_loss(logits, torch.randn(4, 50), 2.0).requires_grad)

# %% [markdown]
# A student under half the size, cut out of labcoder and trained for a few steps, twice with equal budget:
# once on the text alone, once on the teacher's distributions.

# %%
steps = 40 if on_gpu else 6
curves, apprentices = {}, {}
for kind, losses in {"labels": {"outputs": 0.0, "labels": 1.0}, "outputs": {"outputs": 1.0}}.items():
    apprentices[kind] = student(coder)
    settings = Settings(steps=steps, batch=4, length=128, every=3, held_out=4, **losses)
    history = distil(coder, apprentices[kind], train, settings)
    curves[words[f"learns_{kind}"]] = [(each.step, each.bits_per_byte) for each in history.held_out]
widgets.show_figure(maps.learning(curves, words["bits_axis"]), words["learning"])
small_share = apprentices["outputs"].weight_bytes / coder.weight_bytes
print(f"the student has {small_share:.0%} of the teacher's bytes")

# %% [markdown]
# A few seconds make no apprentice. What more time does was recorded. Each student has the same budget, and
# each line adds one thing to matching outputs: hidden states, attention maps, a temperature that follows
# the difficulty of a token, a curriculum from easy to hard. An ingredient helps if its interval leaves 0
# out.

# %%
distilled = results.load("distil")
distil_table = records.distilled(distilled) if distilled else None
show(distil_table) if distil_table else print(words["no_distil"])

# %%
if distil_table:
    ablation = distilled["figures"]["ablation"]
    widgets.show_figure(distilling.learning(ablation), words["learning_there"])
    widgets.show_figure(distilling.margins(ablation, BASE), words["margins"])
    longest = records.students(distilled)
    show(longest) if longest else None

# %% [markdown]
# And a student that finished its training lies beside labcoder in this repository: **labcoder-draft**,
# taught by matching distributions, as above, over 800 million tokens. How good and how fast is it, beside
# its teacher?

# %%
draft = labkit.load("labcoder-draft", device=str(coder.device), dtype=coder.dtype)
read["draft"] = probe.read(draft)
gain = paces({"teacher": coder, "student": draft}, text[:64], rounds=4)
draft_speed = gain["teacher"] / gain["student"]
draft_share = read["plain"].bits_per_byte / read["draft"].bits_per_byte
print(f"{draft.weight_bytes / coder.weight_bytes:.0%} of the bytes, {draft_speed:.1f} × as fast")
print(f"bits per byte {read['plain'].bits_per_byte:.3f} → {read['draft'].bits_per_byte:.3f},")
print(f"which one may call {draft_share:.0%} of the teacher's quality")
print(f"the same likeliest token in {read['draft'].agreement:.0%} of all places")

# %% [markdown]
# "A student under half the size keeps 90 % of the quality at three times the speed." Ask first: *of which*
# quality? By bits per byte it is one figure, by agreement another, by the questions that users really ask a
# third. (And a student that agrees with its teacher most of the time is useful in another way: in notebook
# 07 it drafts, and the teacher only checks.)

# %% [markdown]
# ## 12 · Everything on one map
#
# Quality over speed, the size of a mark is the size of the weights; up and to the right is better. The line
# joins the models that nobody beats in both. On this machine:

# %%
slimmer = {"int8": small["int8"], "w8a8": eight["w8a8"], words["awq_short"]: awq["good"]}
if lm is coder:  # their speed was measured in section 5
    speed = {"int8": pace["int8"], "w8a8": pace["w8a8"], words["awq_short"]: pace["int4"]}
    whole = pace[own]
else:
    speed = paces({"plain": coder} | slimmer, text[:64])
    whole = speed["plain"]
speed |= {"plain": whole, words["pruned_short"]: whole * times["pruned"] / times["whole"]}
speed["labcoder-draft"] = whole / draft_speed
everything = {
    "plain": ("plain", coder, read["plain"]),
    "int8": ("bits", small["int8"], read["int8"]),
    "w8a8": ("bits", eight["w8a8"], read["w8a8"]),
    words["awq_short"]: ("bits", awq["good"], repaired["again"]),
    words["pruned_short"]: ("pruned", cut["taylor"], again),
    "labcoder-draft": ("student", draft, read["draft"]),
}
base = read["plain"].bits_per_byte
spots_here = [
    maps.Place(name, family, model.weight_bytes, 1 / speed[name], one.bits_per_byte - base)
    for name, (family, model, one) in everything.items()
]
widgets.show_figure(maps.pareto(spots_here, f"{coder.name}, measured here"), words["pareto"])

# %% [markdown]
# And the precisions at full size, where weights are what a token waits for. Speed and size are those of the
# recorded 7B, the quality is labcoder's again.

# %%
qualities = {
    name: one.bits_per_byte - base for name, one in read.items() if name in ("int8", "fp8", "w8a8", "int4")
}
big = records.places(h200, qualities) if h200 else []
if big:
    widgets.show_figure(
        maps.pareto(big, f"{h200['figures']['model']}, {h200['badge']}"), words["pareto_there"]
    )
else:
    print(words["not_recorded"])

# %% [markdown]
# No method wins everywhere. Bits buy memory and, with the right kernels, speed for few rows. A student buys
# speed on any machine, without special kernels, and costs a training. Pruning needs more training than a
# few steps before it can compete. And they
# combine: a student, too, can be stored in 8 bits.

# %% [markdown]
# ## 13 · Bug hunt
#
# Eight bits for the weights, as one finds them. So that a few outliers do not make the grid coarse, the
# scale is taken from the standard deviation. What is wrong?


# %%
def to_int8(weight):
    """int8 numbers and a scale for each row; the grid covers three standard deviations."""
    scale = 3 * weight.std(dim=1, keepdim=True) / 127
    return (weight / scale).round().to(torch.int8), scale


def with_weights(rounding):
    """labcoder with every matrix rounded and restored."""
    changed = shared_copy(coder.model)
    for name in linears(coder):
        layer = changed.get_submodule(name)
        numbers, scale = rounding(layer.weight.detach().float().cpu())
        layer.weight = torch.nn.Parameter((numbers * scale).to(layer.weight), requires_grad=False)
    return labkit.LM(changed, coder.tokenizer, "rounded", coder.device, coder.dtype)


def judge(model):
    """How far its weights are off, how good it is, and what it writes."""
    pairs = [
        (layer.weight.detach(), model.model.get_submodule(name).weight)
        for name, layer in linears(coder).items()
    ]
    right = sum(int(((a - b).abs() < 0.01 * a.abs().max()).sum()) for a, b in pairs)
    largest = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    said = profile.generate(model, PROMPT, 24)
    print(
        f"{right / sum(a.numel() for a, _ in pairs):.1%} of the weights are right to a hundredth of the largest,"
    )
    print(f"the worst one is off by {largest:.0%} of it")
    print(f"perplexity {tables.worse(probe.read(model))} above the plain model's")
    print("it writes:", repr(model.decode(list(said.ids))))


PROMPT = coder.encode("def read_config(path):\n    with open(path) as file:\n        ")[0].tolist()
judge(with_weights(to_int8))

# %% [markdown]
# Eight bits, and worse than four, though nearly all weights are right. Decide before you read on. (The
# second line is the trace: by how much can rounding be wrong?)
#
# <details><summary>What is wrong?</summary>
#
# A weight beyond three standard deviations becomes a number beyond 127, and int8 has none.
# `.to(torch.int8)` does not stop at the end: it **wraps around**, and 130 becomes −126. The largest weights
# of the model, those that matter most, change their *sign*.
#
# </details>
#
# Repaired: clamp before the cast.


# %%
def clamped(weight):
    """The same, and what lies beyond the grid takes its last number."""
    scale = 3 * weight.std(dim=1, keepdim=True) / 127
    return (weight / scale).round().clamp(-127, 127).to(torch.int8), scale


judge(with_weights(clamped))

# %% [markdown]
# The fault stays hidden while scales come from the largest weight (nothing lies beyond the grid), and it
# wakes on the day when somebody calibrates, clips, or rounds *activations* with a fixed scale. Two
# relatives of it: an average of int8 numbers computed *in* int8, which overflows; and `astype(np.uint8)` of
# a zero point below 0.

# %% [markdown]
# ## 14 · The rung
#
# The plain model of notebook 01 in int8, one user, the first token and the pace after it.

# %%
ask = Request(prompt=tuple(text[:128]), max_tokens=24, ignore_eos=True)
with standing(slim["int8"], EVERYTHING, rows=2, blocks=64, share=False) as engine:
    engine.run([Request(prompt=tuple(text[:128]), max_tokens=3, ignore_eos=True)])
    runs = [engine.run([ask])[0].latency() for _ in range(2)]
ledger.add(
    "int8 weights",
    model=lm.name,
    device=results.device_name(str(lm.device)),
    notebook="02_compress",
    ttft=statistics.median(one.ttft for one in runs),
    tpot=statistics.median(one.tpot for one in runs),
    throughput=statistics.median(one.tokens / one.e2e for one in runs),
    memory=slim["int8"].weight_bytes + 152 * token_bytes(lm),
    quality=read["int8"].bits_per_byte if lm is coder else None,
)
ledger.show()
print(f"quality of the plain model, on the same pages: {read['plain'].bits_per_byte:.4f} bits/byte")

# %% [markdown]
# (Through the engine, with everything of notebook 05 switched on: a plain loop would hide the gain behind
# Python. Quality on the 10 pages of section 4, lower is better.) On a processor this rung is one of
# *memory*: it may well be slower than the plain model, for the reason that section 5 found. Keep it honest,
# and keep it on the ladder.

# %% [markdown]
# ## Claims checked

# %%
half_gone = rows[-1]
here = {
    "6_int8": words["memory_rate_quality"].format(
        memory=slim["int8"].weight_bytes / 1e6, rate=1 / pace["int8"], worse=100 * read["int8"].worse.mean
    ),
    "6_int4": words["memory_rate_quality"].format(
        memory=slim["int4"].weight_bytes / 1e6, rate=1 / pace["int4"], worse=100 * read["int4"].worse.mean
    ),
    "7": words["size_at"].format(four=taken["4 bits, no scales at all"] / 1e9, full=taken["32 bits"] / 1e9),
    "8": words["from_to"].format(
        before=100 * read["int4"].worse.mean, after=100 * repaired["again"].worse.mean
    ),
    "9": words["student_is"].format(
        share=draft.weight_bytes / coder.weight_bytes, quality=draft_share, speed=draft_speed
    ),
    "9a": words["zeros_are"].format(
        share=half_gone[0], worse=100 * half_gone[2].worse.mean, speed=times["whole"] / times["zeros"]
    ),
    "9b": words["remedies_are"].format(**{name: 100 * one.worse.mean for name, one in repaired.items()}),
    "10": words["pruned_is"].format(
        cut=hurt[words["by_taylor"]].perplexity / plain_perplexity,
        recovered=again.perplexity / plain_perplexity,
        speed=times["whole"] / times["pruned"],
    ),
}
there = {f"6_{name}": records.claim_6(h200["figures"], name) for name in ("int8", "int4")} if h200 else {}
there |= {"9": records.claim_9(distilled["figures"])} if distilled else {}
there |= {"10": records.claim_10(pruned_record["figures"])} if pruned_record else {}
show(records.claims(lm.name, here, there, h200 or distilled or pruned_record))

# %% [markdown]
# **Why they differ**
#
# - *Memory* falls in proportion to bits, plus scales, plus what keeps its precision. A small model with a
#   large vocabulary falls less. The articles' 7.2 and 4.1 GB are right for a 7B; "3.5 GB at 32 bits" is
#   not.
# - *Speed* follows the bytes only where a kernel unpacks in registers, rows are few, and nothing else is
#   waited for. On a recent GPU, 15 tokens per second are those of a loop that waits for something else, so
#   most of what they gain is not the bits' doing.
# - *Quality*: a figure such as "+2.3 %" belongs to one model, one method and one text. A small model
#   suffers more.
# - *AWQ* is better than rounding at equal bits. *Faster* it is not: the format is the same.
# - *Near-zero weights* go for nothing only in small shares, and without a kernel for it they save neither
#   time nor memory.
# - *The remedies* for a bad quantisation all work. They differ in price.
# - *Pruning until the target is met* always meets the target. Look at the quality that is left.

# %% [markdown]
# ## Common misconceptions
#
# - *"4 bits are four times as fast as 16."* At most, for one row, with the right kernel. At large batches
#   they may be slower.
# - *"Perplexity hardly moved, so the model is the same."* Compare token by token: KL and agreement see more
#   than a mean.
# - *"More calibration text is always better."* A few thousand tokens of the right kind do; a million of the
#   wrong kind do not.
# - *"Quantisation is compression, so it takes time to load."* It is a change of format. It loads faster,
#   being smaller.
# - *"Half of all weights are zero, so the model is twice as fast."* Not in a dense matrix product.
# - *"A distilled model knows what its teacher knows."* It says similar things on similar text.

# %% [markdown]
# ## Interview questions
#
# <details><summary>A 13B model has to fit into 10 GB. What do you try, in which order?</summary>
#
# 16 bits are 26 GB, 8 bits 13 GB: too much. 4 bits with groups of 128 are 4.125 bits a weight, 6.7 GB,
# which leaves room for the KV cache. AWQ first; then the most sensitive layers at 8 bits, as far as the
# room goes.
#
# </details>
# <details><summary>Why does AWQ scale columns of W and not rows?</summary>
#
# Columns belong to input channels, and large inputs are what makes an error matter. A row's scale is
# divided out by the quantisation's own scale for that row: it would change nothing.
#
# </details>
# <details><summary>Why must the scale of int8 activations be per row, and not per column?</summary>
#
# It has to come out of the sum. The sum runs over columns, so a scale of a column cannot be taken out of an
# integer sum; one for each row of x and one for each row of W can. (SmoothQuant gets at columns by moving
# their scales into the weights.)
#
# </details>
# <details><summary>int4 is faster than bf16 at 1 row and slower at 256. Why?</summary>
#
# With one row a step waits for weights, a quarter of the bytes. With 256 it waits for arithmetic, which is
# done in 16 bits all the same, and unpacking comes on top.
#
# </details>
# <details><summary>Why is a Taylor score summed over tokens before the absolute value is taken?</summary>
#
# Removing the neuron removes it at all tokens at once. The change of the loss is the sum; effects of
# opposite sign cancel.
#
# </details>
# <details><summary>Why T² in the distillation loss?</summary>
#
# Logits are divided by T, and the difference of the softened distributions shrinks by T too, so gradients
# shrink by T². The factor keeps their size, and the learning rate its meaning.
#
# </details>
# <details><summary>Your 4-bit model answers badly only in German. What happened?</summary>
#
# Perhaps it was calibrated on English alone: scales and clips were chosen for other inputs. Calibrate again
# on both, and evaluate on both.
#
# </details>

# %% [markdown]
# **Where this is used.** AWQ and GPTQ checkpoints fill the model hubs, and vLLM, SGLang and TensorRT-LLM
# run them with kernels such as Marlin. llama.cpp's formats are groups and mixed precision, for processors.
# bitsandbytes serves QLoRA, torchao quantises for `torch.compile`, LLM Compressor writes W8A8 checkpoints.
# fp8 is what current GPUs multiply natively. Pruned and distilled families are on the hubs as well:
# Minitron, DistilBERT, the small Gemmas.
#
# **What next.** The recipe is slim, and still each guest is cooked for alone, though weights that are read
# for one row could serve a hundred. The next notebook, `03_batch`, cooks several orders in one wok.

# %%
progress.show("02_compress")
