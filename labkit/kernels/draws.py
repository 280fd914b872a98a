"""From logits to one drawn token a row: penalties, filters and counter-based noise, as pure tensor functions.

A draw must not depend on who else is in the batch. Three choices make that exact, not merely likely:

- *Noise is a function, not a stream.* The uniform of (seed, output index, token id) is a hash of the three.
  Nothing is consumed, so a request that was preempted, moved or batched otherwise meets the same noise.
- *The draw is a race* (Gumbel-max): the token with the largest logit / T − log(−log u) wins, which picks
  token i with probability softmax(logits / T)_i. No normalisation, so no sum over the vocabulary.
- *The one sum that a filter needs runs in integers*, where every order of adding gives the same result.
  In floating point, kernels add in an order that depends on the batch's shape.

All of it is float64, in which logarithms of two devices agree closely enough that a CPU and a GPU draw alike.

Without penalties and filters a draw is one kernel (`draw`, in draws_triton.py) where torch needs some forty.

Sources: Gumbel 1954 and Maddison et al. 2014, "A* Sampling" (the race); Salmon et al. 2011, "Parallel Random
Numbers: As Easy as 1, 2, 3" (counters); Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators"
(SplitMix64, the hash); Holtzman et al. 2019 (top-p); Nguyen et al. 2024 (min-p); Keskar et al. 2019,
"CTRL" (repetition penalty). Filters follow transformers in order and meaning: top-k, then top-p, then min-p.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from labkit.kernels.device import power

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio: SplitMix64's step from one state to the next
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)

FIXED_POINT = 2.0**40
"""A probability relative to the largest one, as an integer: 2¹⁸ tokens of 2⁴⁰ still fit in 64 bits."""

LARGEST = 1e300
"""What +inf becomes, so that it wins every race and its difference from itself is 0, not NaN."""


def signed(number: int) -> int:
    """The 64-bit pattern of `number` read as a signed integer, which is what torch's int64 holds."""
    number &= MASK
    return number - (1 << 64) if number >> 63 else number


def sample_seed(seed: int, number: int) -> int:
    """The seed of sample `number` of a request that asked for several; sample 0 keeps the request's own."""
    return seed if number == 0 else signed(_mix_number(seed + _mix_number(number * GOLDEN)))


def _mix_number(state: int) -> int:
    """`_mix` for one Python integer."""
    state &= MASK
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        state = ((state ^ (state >> shift)) * multiplier) & MASK
    return state ^ (state >> SHIFTS[-1])


def _mix(state: Tensor) -> Tensor:
    """SplitMix64's output function, in place. int64 products wrap modulo 2⁶⁴, on a CPU and on a GPU."""
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        state ^= _shifted(state, shift)
        state *= signed(multiplier)
    state ^= _shifted(state, SHIFTS[-1])
    return state


def _shifted(state: Tensor, shift: int) -> Tensor:
    """Unsigned shift to the right: torch's own copies the sign into the upper bits, so mask them."""
    return (state >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def uniforms(seeds: Tensor, index: Tensor, vocab: int) -> Tensor:
    """float64 [n, vocab] in (0, 1): the noise of each token at one draw.

    A row's key is the `index`-th output of the generator that starts at its seed; the tokens' noise is the
    output of the generator that starts at that key. Both ends of the interval are excluded.

    Args:
        seeds: int64 [n].
        index: int64 [n], the output tokens that the row has had.
        vocab: tokens.
    """
    step = signed(GOLDEN)
    start = _mix(_mix(seeds * step) + index * step)
    counter = torch.arange(1, vocab + 1, device=seeds.device)
    bits = _shifted(_mix(start[:, None] + counter * step), 12)
    return bits.double().add_(0.5).mul_(2.0**-52)  # 52 bits, so that the half is exact and 1 is never reached


def penalised(
    logits: Tensor, prompt: Tensor, output: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Logits made smaller for tokens that occurred. Penalties of 1, 0 and 0 change nothing.

    repetition (over prompt and output): positive logits are divided by it, negative ones multiplied.
    presence and frequency (over output only): logit − presence · [count > 0] − frequency · count.

    Args:
        logits: float64 [n, vocab].
        prompt: bool [n, vocab], the token is in the prompt.
        output: int [n, vocab], how often the token was generated.
        repetition, presence, frequency: float64 [n, 1].
    """
    again = torch.where(logits < 0, logits * repetition, logits / repetition)
    generated = output > 0
    logits = torch.where(prompt | generated, again, logits)
    return logits - presence * generated - frequency * output


def relative(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """(logit − largest logit) / temperature, float64 [n, vocab]: the largest becomes 0.

    The difference comes first, so that no temperature above 0, however small, overflows. A row of temperature
    0 is divided by 1: it is greedy, and what wins does not depend on the scale.

    Args:
        logits: float64 [n, vocab]; +inf beats everything finite, several share the draw.
        temperature: one for all or float64 [n, 1]; 0 means greedy.
    """
    logits = logits.clamp(max=LARGEST)
    logits = logits - logits.amax(dim=-1, keepdim=True)
    if isinstance(temperature, Tensor):
        temperature = torch.where(temperature > 0, temperature, 1.0)
    return logits / temperature


def top_k_top_p(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Scores with −inf for what top-k and then top-p remove; of equal scores, top-p keeps the lower ids.

    top-k keeps what is at least as large as the k-th largest (equal ones too). top-p keeps a token if the
    probability, among what top-k kept, of all tokens before it is below p.

    Args:
        scores: float64 [n, vocab], relative to the largest.
        top_k: int64 [n, 1], from 1 to vocab.
        top_p: float64 [n, 1] in (0, 1].
    """
    ordered, tokens = scores.sort(dim=-1, descending=True, stable=True)
    ordered.masked_fill_(ordered < ordered.gather(-1, top_k - 1), -torch.inf)
    weights = ordered.exp().mul_(FIXED_POINT).round_().long()
    before = weights.cumsum(dim=-1).sub_(weights)
    total = before[:, -1:] + weights[:, -1:]
    removed = (before >= top_p * total) & (top_p < 1)
    ordered.masked_fill_(removed, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, tokens, ordered)


def min_p(scores: Tensor, least: Tensor) -> Tensor:
    """Scores with −inf where the probability is below `least` (float64 [n, 1]) times the largest one's."""
    return scores.masked_fill(scores.exp() < least, -torch.inf)


def race(scores: Tensor, seeds: Tensor, index: Tensor, random: Tensor) -> Tensor:
    """The winners, int64 [n]; rows where `random` (bool [n, 1]) is false take the largest score, lowest id."""
    noise = uniforms(seeds, index, scores.shape[-1]).log_().neg_().log_().neg_()
    return noise.mul_(random).add_(scores).argmax(dim=-1)


WORDS = 8
"""64-bit words of a row's settings: the temperature (float64) first, the seed last (see BatchSampler)."""


def draw(logits: Tensor, settings: Tensor, slots: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """A token for every row in one kernel, without penalties and filters: `relative` and `race` together.

    On a GPU that Triton compiles for, or in its interpreter.

    Args:
        logits: [n, vocab], any floating dtype.
        settings: int64 [rows, WORDS], of which temperature and seed are read.
        slots: int64 [n], each row's place in `settings`.
        index: int64 [n], the output tokens that the row has had.

    Returns:
        (tokens int64 [n], bad bool [n]): bad rows hold a NaN or are all −inf, and their token means nothing.
    """
    rows, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    bad = torch.empty(rows, dtype=torch.bool, device=logits.device)
    if rows:
        _kernels().draw_kernel[(rows,)](
            logits, settings, slots, index, tokens, bad, vocab, logits.stride(0),
            WORDS=WORDS, LARGEST=LARGEST, TILE=min(4096, power(vocab)), num_warps=16,
        )  # fmt: skip
    return tokens, bad


def draw_reference(logits: Tensor, settings: Tensor, slots: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """`draw` in torch, on any device."""
    words = settings.index_select(0, slots)
    temperature = words.view(torch.float64)[:, :1]
    scores = relative(logits.double(), temperature)
    tokens = race(scores, words[:, -1], index, temperature > 0)
    return tokens, ~(logits.amax(-1) > -torch.inf)


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import draws_triton

    return draws_triton
