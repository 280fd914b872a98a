"""How good a model is, and how sure one can be that a change made it worse.

Perplexity depends on the tokenizer; bits per byte does not, so it compares any two models. KL divergence and
top-1 agreement compare a changed model with the original on the same tokens and see changes that an average
loss hides. A change is always reported with a paired bootstrap interval.
"""

from labkit.quality.bootstrap import Interval, change, paired_bootstrap
from labkit.quality.comparison import Comparison, compare, kl_divergence, top1_agreement
from labkit.quality.report import evaluate
from labkit.quality.scoring import CONTEXT, STRIDE, Score, bits_per_byte, perplexity, score
from labkit.quality.text import evaluation_files, evaluation_text

__all__ = [
    "CONTEXT",
    "STRIDE",
    "Comparison",
    "Interval",
    "Score",
    "bits_per_byte",
    "change",
    "compare",
    "evaluate",
    "evaluation_files",
    "evaluation_text",
    "kl_divergence",
    "paired_bootstrap",
    "perplexity",
    "score",
    "top1_agreement",
]
