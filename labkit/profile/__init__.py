"""Measure before changing: latency, stages, ceilings, cost, roofline and the gaps on the timeline."""

from labkit.profile.budget import STAGES, StageReport, StageRun
from labkit.profile.card import CostCard, Phase, cost_card
from labkit.profile.datasheet import DATASHEET, Ceilings, datasheet_for
from labkit.profile.formulas import attainable, floor_seconds, intensity, kv_bytes, mbu, mfu, ridge
from labkit.profile.latency import LatencyReport, latency_report
from labkit.profile.loop import Generation, decode_steps, generate
from labkit.profile.nvtx import annotate, nsys_command, nvtx_range
from labkit.profile.peaks import cache_bytes, ceilings, matmul_flops, read_bandwidth
from labkit.profile.roofline import RooflinePoint, roofline_points
from labkit.profile.sampling import Sampler
from labkit.profile.shape import Shape, shape_of
from labkit.profile.stages import stage_report
from labkit.profile.streaming import StreamDecoder
from labkit.profile.timeline import Gap, Span
from labkit.profile.tracer import Trace, trace

__all__ = [
    "DATASHEET",
    "STAGES",
    "Ceilings",
    "CostCard",
    "Gap",
    "Generation",
    "LatencyReport",
    "Phase",
    "RooflinePoint",
    "Sampler",
    "Shape",
    "Span",
    "StageReport",
    "StageRun",
    "StreamDecoder",
    "Trace",
    "annotate",
    "attainable",
    "cache_bytes",
    "ceilings",
    "cost_card",
    "datasheet_for",
    "decode_steps",
    "floor_seconds",
    "generate",
    "intensity",
    "kv_bytes",
    "latency_report",
    "matmul_flops",
    "mbu",
    "mfu",
    "nsys_command",
    "nvtx_range",
    "read_bandwidth",
    "ridge",
    "roofline_points",
    "shape_of",
    "stage_report",
    "trace",
]
