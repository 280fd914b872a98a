"""Language models to measure: the embedded labcoder, its inflation to full-size shapes, and real checkpoints.

lm = load("labcoder")           # offline, on any laptop
lm = load("labcoder@7b")        # costs what a 7B costs, says what labcoder says
lm = load("Qwen/Qwen3-0.6B")    # any decoder-only attention model in safetensors
save(lm, "folder")              # quantised or not; load("folder") reads it back
"""

from labkit.models.inflation import inflate
from labkit.models.lm import LM
from labkit.models.loader import load
from labkit.models.packed_checkpoint import save
from labkit.models.presets import PRESETS, Shape, inflated_config

__all__ = ["LM", "PRESETS", "Shape", "inflate", "inflated_config", "load", "save"]
