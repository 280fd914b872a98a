"""Plain values as bytes: what may pass between the grader and a learner's process.

Stands alone (the learner's process loads it without labkit). Reading never runs code that came with the data, unlike
pickle: what comes back is None, bool, int, float, str, bytes, list, tuple, dict, torch tensors, numpy arrays and
scalars, of exactly those types. So an object that claims to equal everything cannot cross: it is refused, or
flattened to the plain value it holds.

A value is a one-letter tag and its content.
"""

import math
import numbers
import struct
import sys
from collections.abc import Callable
from typing import Any

LIMIT = 64 * 2**20  # bytes of one message
DEPTH = 64  # containers inside containers
ITEMS = 1_000_000  # of lists and tuples in one message: reading them takes about a second
ENTRIES = 20_000  # dict entries in one message: hostile keys that collide would cost the reader n² steps
INT_BITS = 4096
NUMBERS = "biufc"  # kinds of numpy arrays: bool, integers, floats, complex

Expose = Callable[[Callable[..., Any]], int]
Revive = Callable[[int], Callable[..., Any]]

_COUNT, _DOUBLE = (struct.Struct(code) for code in (">I", ">d"))
_SUBCLASSES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    # The base class's own conversion, so that what a subclass overrides is not asked.
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, lambda value: bytes(bytes.__iter__(value))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (dict, lambda value: dict(dict.items(value))),
    (numbers.Real, float),  # a fraction, for one
)


class NotPlain(TypeError):
    """A value that may not cross, or bytes that are no message."""


def pack(value: Any, expose: Expose | None = None) -> bytes:
    """A plain value as bytes.

    Args:
        value: what to send.
        expose: gives a callable its number; without it callables are refused.

    Raises:
        NotPlain: the value, or one inside it, is not plain; names its type.
    """
    out = bytearray()
    _pack(out, value, 0, expose)
    if len(out) > LIMIT:
        raise NotPlain(f"a value of {len(out)} bytes; the limit is {LIMIT}")
    return bytes(out)


def snapshot(*values: Any) -> bytes | None:
    """What values look like now, to see later whether somebody changed them; None where they are not plain."""
    try:
        return pack(values, expose=lambda _: 0)
    except NotPlain:
        return None


def _pack(out: bytearray, value: Any, depth: int, expose: Expose | None) -> None:
    kind = type(value)
    if depth > DEPTH:
        raise NotPlain(f"containers nested more than {DEPTH} deep")
    if value is None or kind is bool:
        out += {None: b"N", True: b"T", False: b"F"}[value]
    elif kind is int:
        size = value.bit_length() // 8 + 1
        if size * 8 > INT_BITS:
            raise NotPlain(f"an integer of {value.bit_length()} bits")
        _blob(out, b"i", value.to_bytes(size, "big", signed=True))
    elif kind is float:
        out += b"f" + _DOUBLE.pack(value)
    elif kind is str:
        _blob(out, b"s", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        _blob(out, b"b", value)
    elif kind is list or kind is tuple:
        out += (b"l" if kind is list else b"t") + _COUNT.pack(len(value))
        for item in value:
            _pack(out, item, depth + 1, expose)
    elif kind is dict:
        out += b"d" + _COUNT.pack(len(value))
        for key, item in value.items():
            _pack(out, key, depth + 1, expose)
            _pack(out, item, depth + 1, expose)
    else:
        _pack_other(out, value, depth, expose)


def _pack_other(out: bytearray, value: Any, depth: int, expose: Expose | None) -> None:
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        _pack_tensor(out, torch, value)
        return
    arrays = (numpy.ndarray, numpy.generic) if numpy is not None else ()
    if isinstance(value, arrays) and value.dtype.kind in NUMBERS:
        _header(out, b"z" if isinstance(value, numpy.generic) else b"a", value.dtype.str, "", value.shape)
        _blob(out, b"", numpy.asarray(value).tobytes())
        return
    for base, plain in _SUBCLASSES:
        if isinstance(value, base):
            _pack(out, plain(value), depth, expose)
            return
    if expose is not None and callable(value):
        out += b"c" + _COUNT.pack(expose(value))
        return
    raise NotPlain(f"a {type(value).__name__}")


def _pack_tensor(out: bytearray, torch: Any, value: Any) -> None:
    with torch._C.DisableTorchFunctionSubclass():  # what a subclass overrides is not asked
        if value.layout != torch.strided or value.is_quantized or value.device.type not in ("cpu", "cuda"):
            raise NotPlain(f"a tensor of layout {value.layout} on {value.device}")
        tensor = value.detach().as_subclass(torch.Tensor)
    flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    _header(out, b"x", str(tensor.dtype).removeprefix("torch."), tensor.device.type, tensor.shape)
    _blob(out, b"", flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def _blob(out: bytearray, tag: bytes, content: bytes) -> None:
    out += tag + _COUNT.pack(len(content))
    out += content


def _header(out: bytearray, tag: bytes, dtype: str, device: str, shape: Any) -> None:
    _blob(out, tag, dtype.encode())
    _blob(out, b"", device.encode())
    _blob(out, b"", b"".join(_COUNT.pack(size) for size in shape))


def unpack(data: bytes, revive: Revive | None = None) -> Any:
    """The value that `data` holds.

    Args:
        data: one message.
        revive: gives the callable of a number; without it a message with callables is refused.

    Raises:
        NotPlain: the bytes are no such message.
    """
    reader = _Reader(data, revive)
    try:
        value = reader.value(0)
    except NotPlain:
        raise
    except Exception as error:  # whatever bytes can be wrong in: lengths, text, shapes, keys
        raise NotPlain(f"no message: {error}") from None
    if reader.at != len(data):
        raise NotPlain("a message with bytes left over")
    return value


class _Reader:
    """A position in a message. Every count is held against the bytes that are left before anything is made."""

    def __init__(self, data: bytes, revive: Revive | None) -> None:
        self.data, self.at, self.revive = data, 0, revive
        self.items = self.entries = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise NotPlain("a message that ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def count(self, width: int = 0) -> int:
        number: int = _COUNT.unpack(self.take(_COUNT.size))[0]
        if number * width > len(self.data) - self.at:
            raise NotPlain("a message that ends early")
        return number

    def value(self, depth: int) -> Any:
        tag = self.take(1)
        if depth > DEPTH:
            raise NotPlain(f"containers nested more than {DEPTH} deep")
        if tag in b"NTF":
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"i":
            size = self.count(1)
            if size * 8 > INT_BITS:
                raise NotPlain(f"an integer of {size} bytes")
            return int.from_bytes(self.take(size), "big", signed=True)
        if tag == b"f":
            return _DOUBLE.unpack(self.take(_DOUBLE.size))[0]
        if tag == b"s":
            return self.take(self.count(1)).decode("utf-8", "surrogatepass")
        if tag == b"b":
            return self.take(self.count(1))
        if tag in b"lt":
            count = self.count(1)
            self.items += count
            if self.items > ITEMS:
                raise NotPlain(f"more than {ITEMS} list items")
            items = [self.value(depth + 1) for _ in range(count)]
            return items if tag == b"l" else tuple(items)
        if tag == b"d":
            return self.mapping(depth)
        if tag in b"azx":
            return self.array(tag)
        if tag == b"c" and self.revive is not None:
            return self.revive(self.count())
        raise NotPlain(f"an unknown tag {tag!r}")

    def mapping(self, depth: int) -> dict[Any, Any]:
        count = self.count(2)
        self.entries += count
        if self.entries > ENTRIES:
            raise NotPlain(f"more than {ENTRIES} dict entries")
        return {self.value(depth + 1): self.value(depth + 1) for _ in range(count)}

    def array(self, tag: bytes) -> Any:
        dtype, device = self.take(self.count(1)).decode(), self.take(self.count(1)).decode()
        shape = [size for (size,) in _COUNT.iter_unpack(self.take(self.count(1)))]
        content = bytearray(self.take(self.count(1)))
        if tag == b"x":
            return _tensor(dtype, device, shape, content)
        import numpy

        kind = numpy.dtype(dtype)
        if kind.kind not in NUMBERS or math.prod(shape) * kind.itemsize != len(content):
            raise NotPlain(f"{len(content)} bytes for an array {dtype}{shape}")
        array = numpy.frombuffer(content, dtype="u1" if kind.kind == "b" else kind).reshape(shape)
        if kind.kind == "b":
            array = numpy.asarray(array != 0)  # a bool of value 2 is neither true nor false
        return array if tag == b"a" else array[()]


def _tensor(name: str, device: str, shape: list[int], content: bytearray) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or device not in ("cpu", "cuda"):
        raise NotPlain(f"a tensor of {name} on {device}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise NotPlain(f"{len(content)} bytes for a tensor {name}{shape}")
    if not content:
        return torch.empty(shape, dtype=dtype, device=device)
    flat = torch.frombuffer(content, dtype=torch.uint8)
    flat = flat.ne(0) if dtype is torch.bool else flat.view(dtype)
    return flat.reshape(shape).to(device)
