"""Keys and values in fewer bytes on the host, restored bit for bit.

A bfloat16 number is a sign, 8 bits of exponent and 7 of mantissa. Neighbouring numbers have similar exponents
and unrelated mantissas, so a block stored as it lies looks like noise to a codec. Stored as *byte planes*, all
high bytes together and then all low ones, the high plane shrinks to about 40 % and the low one hardly at all;
a plane that does not shrink is kept as it is.

Sources: byte planes are the shuffle filter of HDF5 and Blosc; Hershcovitch et al. 2024, "ZipNN", split the
exponents of model weights from the rest and found that a Huffman code alone is enough. Deutsch 1996, RFC 1951.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor

from labkit.errors import LabkitError

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Codec:
    """A lossless codec: two functions from bytes to bytes, each the inverse of the other."""

    name: str
    compress: Callable[[bytes], bytes] = field(repr=False)
    decompress: Callable[[bytes], bytes] = field(repr=False)


def zlib_codec(level: int = 1) -> Codec:
    """DEFLATE at a level from 1 (fast) to 9 (small): repeated strings, then a Huffman code."""
    if level not in range(1, 10):
        raise LabkitError(f"zlib has no level {level}.", "Give a level from 1 (fast) to 9 (small).")
    return Codec(f"zlib level {level}", lambda data: zlib.compress(data, level), zlib.decompress)


def huffman_codec() -> Codec:
    """DEFLATE without its search for repeated strings, which exponents hardly have: a Huffman code alone."""

    def compress(data: bytes) -> bytes:
        coder = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
        return coder.compress(data) + coder.flush()

    return Codec("Huffman only", compress, zlib.decompress)


def lzma_codec(preset: int = 0) -> Codec:
    """LZMA at a preset from 0 (fast) to 9 (small): slow, with a model of the bytes before."""
    if preset not in range(10):
        raise LabkitError(f"lzma has no preset {preset}.", "Give a preset from 0 (fast) to 9 (small).")
    return Codec(f"lzma preset {preset}", lambda data: lzma.compress(data, preset=preset), lzma.decompress)


DEFAULT = zlib_codec(1)


@dataclass(frozen=True)
class Plane:
    """One byte of every number, in the order of the numbers.

    Args:
        data: what is kept.
        size: bytes before.
        coded: the codec made it smaller; else `data` is the plane itself.
    """

    data: bytes = field(repr=False)
    size: int
    coded: bool


@dataclass(frozen=True)
class Packed:
    """A tensor on the host, compressed.

    Args:
        planes: the most significant byte first.
        shape, dtype: of the tensor.
        codec: what coded the planes.
        checksum: CRC-32 of shape, dtype and planes.
    """

    planes: tuple[Plane, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    codec: Codec
    checksum: int

    @property
    def raw_bytes(self) -> int:
        """Bytes of the tensor."""
        return sum(plane.size for plane in self.planes)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are kept. (The fields of this object, some hundred bytes, are not counted.)"""
        return sum(len(plane.data) for plane in self.planes)


@dataclass(frozen=True)
class PlaneSize:
    """Bytes of one plane before and after compression."""

    name: str
    before: int
    after: int


def compress_block(tensor: Tensor, codec: Codec = DEFAULT) -> Packed:
    """The tensor as compressed byte planes on the host, its bits kept: NaN payloads and −0.0 too.

    Args:
        tensor: any shape, on any device, of one of DTYPES.
        codec: applied to each plane by itself.

    Raises:
        LabkitError: another dtype.
    """
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise LabkitError(f"A block of {tensor.dtype} cannot be compressed.", f"Use one of {names}.")
    width = tensor.element_size()
    words = tensor.detach().reshape(-1).contiguous().view(torch.uint8).view(-1, width)
    raw = [plane.tobytes() for plane in words.t().flip(0).contiguous().cpu().numpy()]  # low bytes come first
    planes = tuple(_plane(data, codec) for data in raw)
    return Packed(
        planes, tuple(tensor.shape), tensor.dtype, codec, _checksum(tensor.shape, tensor.dtype, raw)
    )


def restore(packed: Packed, device: torch.device | str = "cpu") -> Tensor:
    """The tensor again, bit for bit.

    Raises:
        LabkitError: the stored bytes are damaged.
    """
    try:
        raw = [packed.codec.decompress(each.data) if each.coded else each.data for each in packed.planes]
    except Exception as error:  # each codec has errors of its own for damaged input
        raise _damaged(packed) from error
    sizes = [len(plane) for plane in raw]
    expected = [plane.size for plane in packed.planes]
    if sizes != expected or _checksum(packed.shape, packed.dtype, raw) != packed.checksum:
        raise _damaged(packed)
    words = torch.empty(sizes[0], len(raw), dtype=torch.uint8)
    words.numpy()[:] = numpy.frombuffer(b"".join(raw), dtype=numpy.uint8).reshape(len(raw), sizes[0])[::-1].T
    return words.view(-1).view(packed.dtype).reshape(packed.shape).to(device)


def ratio(packed: Packed) -> float:
    """Bytes of the tensor ÷ bytes that are kept: 2 means half the memory. 1 for an empty tensor."""
    return packed.raw_bytes / packed.stored_bytes if packed.stored_bytes else 1.0


def plane_sizes(packed: Packed) -> tuple[PlaneSize, ...]:
    """Each plane's bytes before and after, the most significant byte first."""
    places = range(len(packed.planes) - 1, -1, -1)
    return tuple(
        PlaneSize(f"byte {place}", plane.size, len(plane.data))
        for place, plane in zip(places, packed.planes, strict=True)
    )


def plane_report(tensor: Tensor, codec: Codec = DEFAULT) -> tuple[PlaneSize, ...]:
    """What `compress_block` would make of the tensor, plane by plane."""
    return plane_sizes(compress_block(tensor, codec))


def _plane(data: bytes, codec: Codec) -> Plane:
    coded = codec.compress(data)
    smaller = len(coded) < len(data)
    return Plane(coded if smaller else data, len(data), smaller)


def _checksum(shape: tuple[int, ...], dtype: torch.dtype, planes: list[bytes]) -> int:
    total = zlib.crc32(f"{tuple(shape)} {dtype}".encode())
    for plane in planes:
        total = zlib.crc32(plane, total)
    return total


def _damaged(packed: Packed) -> LabkitError:
    return LabkitError(
        f"A compressed block of shape {list(packed.shape)} is damaged: its checksum does not fit.",
        "Discard it and compute the block again.",
    )
