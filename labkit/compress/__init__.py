"""Slimming the recipe: the same model in fewer bits, fewer weights, or a smaller student."""

from labkit.compress.budget import allocate
from labkit.compress.calibration import Calibration, calibrate
from labkit.compress.damage import Damage, damage
from labkit.compress.layers import linears
from labkit.compress.quantize import METHODS, SCHEMES, quantize, shared_copy
from labkit.compress.ready_made import bitsandbytes_model
from labkit.compress.sensitivity import Sensitivity, sensitivity
from labkit.compress.text import training_text, training_tokens
from labkit.kernels.formats import Format
from labkit.kernels.packed import Packed, quantise

__all__ = [
    "METHODS",
    "SCHEMES",
    "Calibration",
    "Damage",
    "Format",
    "Packed",
    "Sensitivity",
    "allocate",
    "bitsandbytes_model",
    "calibrate",
    "damage",
    "linears",
    "quantise",
    "quantize",
    "sensitivity",
    "shared_copy",
    "training_text",
    "training_tokens",
]
