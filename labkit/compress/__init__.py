"""Slimming the recipe: the same model in fewer bits, fewer weights, or a smaller student."""

from labkit.compress.quantize import METHODS, SCHEMES, linears, quantize, shared_copy
from labkit.kernels.formats import Format
from labkit.kernels.packed import Packed, quantise

__all__ = ["METHODS", "SCHEMES", "Format", "Packed", "linears", "quantise", "quantize", "shared_copy"]
