# %% [markdown]
# # 02 · A slimmer recipe
#
# The exercises of this notebook, in order.

# %% role="setup"
import math
from itertools import combinations

import torch
import torch.nn.functional as F

from labkit.course import check

# %% [markdown]
# ## Rounding


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

# %%
quantise = check.use("quantise", quantise)


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

# %% [markdown]
# ## Packing


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

# %%
pack_int4 = check.use("pack_int4", pack_int4)


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

# %%
unpack_int4 = check.use("unpack_int4", unpack_int4)


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

# %%
model_bytes = check.use("model_bytes", model_bytes)

# %% [markdown]
# ## Activations


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

# %%
int8_linear = check.use("int8_linear", int8_linear)


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

# %%
awq_scale = check.use("awq_scale", awq_scale)


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

# %%
keep_precise = check.use("keep_precise", keep_precise)

# %% [markdown]
# ## Pruning and distillation


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

# %%
taylor_importance = check.use("taylor_importance", taylor_importance)


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

# %%
distil_loss = check.use("distil_loss", distil_loss)
