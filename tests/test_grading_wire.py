"""The codec between the grader and a learner's process: exact round trips, and nothing but plain values."""

import io
import math
import pickle
import random
import struct
from collections import Counter, OrderedDict, namedtuple
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.course.grading import frames, wire

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**4000), 2**4000)
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
keys = st.integers() | st.text() | st.tuples(st.integers(), st.booleans())
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=30,
)


def same(left: object, right: object) -> bool:
    """Equal, of the same types all the way down (1 is not True, 1.0 is not 1, -0.0 is not 0.0)."""
    return type(left) is type(right) and repr(left) == repr(right)


@given(plain)
@settings(max_examples=300, deadline=None)
def test_plain_values_return_exactly(value: object) -> None:
    assert same(wire.unpack(wire.pack(value)), value)


def test_special_floats_keep_their_bits() -> None:
    for value in (math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324):
        back = wire.unpack(wire.pack(value))
        assert struct.pack(">d", back) == struct.pack(">d", value)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (7, 5), (2, 3, 1, 4)], ids=str)
def test_tensors_of_every_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    size = max(1, dtype.itemsize)
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (math.prod(shape) * size,), dtype=torch.uint8)
    tensor = (raw.bool() if dtype is torch.bool else raw.view(dtype)).reshape(shape)
    back = wire.unpack(wire.pack([tensor]))[0]
    assert type(back) is torch.Tensor and back.dtype == dtype and back.shape == tensor.shape
    assert wire.pack(back) == wire.pack(tensor)  # bit for bit, NaNs included
    if dtype is not torch.bool and back.numel():
        assert torch.equal(back.reshape(-1).view(torch.uint8), raw)


def test_views_gradients_and_parameters_arrive_as_their_values() -> None:
    base = torch.randn(6, 8)
    for tensor in (
        base.t(),
        base[::2, 1:5],
        base.expand(3, 6, 8),
        torch.nn.Parameter(base),
        torch.randn(3, dtype=torch.cfloat).conj(),
    ):
        back = wire.unpack(wire.pack(tensor))
        assert type(back) is torch.Tensor and not back.requires_grad and torch.equal(back, tensor.detach())
    back.add_(1)  # writable, and owning its memory


@pytest.mark.parametrize("dtype", ["?", "i1", "<i8", ">i4", "u2", "f2", "f4", "f8", "c8"])
def test_numpy_arrays_and_scalars(dtype: str) -> None:
    array = np.random.default_rng().integers(0, 2, (3, 4)).astype(dtype)
    for value in (array, array.T, array[0, 0], array[:0], np.asarray(array[1, 1])):
        back = wire.unpack(wire.pack(value))
        assert type(back) is type(value) and back.dtype == value.dtype and back.shape == value.shape
        assert np.array_equal(back, value)
    assert same(wire.unpack(wire.pack(np.float64("nan"))), np.float64("nan"))


class Sly(float):
    """Says that it equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __float__(self) -> float:
        return 42.0

    __hash__ = float.__hash__


class SlyList(list):
    def __iter__(self):
        return iter([42])

    def __len__(self) -> int:
        return 1


class SlyTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True


def test_subclasses_arrive_flattened_to_what_they_hold() -> None:
    Point = namedtuple("Point", "x y")
    values = [Sly(1.5), SlyList([7, 8]), Point(1, 2), OrderedDict(a=1), Counter("aa"), True, Fraction(1, 4)]
    assert same(wire.unpack(wire.pack(values)), [1.5, [7, 8], (1, 2), {"a": 1}, {"a": 2}, True, 0.25])
    tensor = wire.unpack(wire.pack(torch.arange(3).as_subclass(SlyTensor)))
    assert type(tensor) is torch.Tensor and tensor.tolist() == [0, 1, 2]


def test_other_objects_are_refused_by_name() -> None:
    class Everything:
        def __eq__(self, other: object) -> bool:
            return True

    looped: list = []
    looped.append(looped)
    bad = [
        Everything(),
        {1},
        range(3),
        iter([]),
        object,
        lambda: 1,
        np.array([{}]),
        torch.ones(2).to_sparse(),
        looped,
        1 << 5000,
    ]
    bad.append(torch.empty(2, device="meta"))
    for value in bad:
        with pytest.raises(wire.NotPlain):
            wire.pack({"deep": [value]})
    with pytest.raises(wire.NotPlain, match="Everything"):
        wire.pack(Everything())


def test_callables_cross_only_where_they_are_exposed() -> None:
    table = [len, max]
    data = wire.pack([len, {"f": max}], expose=table.index)
    assert wire.unpack(data, revive=table.__getitem__) == [len, {"f": max}]
    with pytest.raises(wire.NotPlain):
        wire.unpack(data)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_garbage_is_refused_or_plain(data: bytes) -> None:
    try:
        value = wire.unpack(data)
    except wire.NotPlain:
        return
    assert wire.pack(value) is not None


def test_damaged_messages_never_raise_anything_else() -> None:
    rng = random.Random()
    whole = wire.pack(
        {"a": [1, 2.0, "x", torch.randn(3, 2), np.arange(4)], (1, 2): b"bytes", "n": {"m": (None, True)}}
    )
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.choice([len(data), rng.randrange(len(data))])]
        try:
            wire.unpack(bytes(data))
        except wire.NotPlain:
            pass


def test_pickles_and_announced_giants_are_refused() -> None:
    with pytest.raises(wire.NotPlain):
        wire.unpack(pickle.dumps([1]))
    with pytest.raises(wire.NotPlain):
        wire.unpack(b"l" + struct.pack(">I", 2**32 - 1))
    with pytest.raises(frames.TooLong, match="limit"):
        frames.read(io.BytesIO(struct.pack(">Q", 2**40) + b"x"))
    with pytest.raises(EOFError):
        frames.read(io.BytesIO(struct.pack(">Q", 10) + b"short"))
    deep = b"l\0\0\0\1" * 100_000 + b"N"
    with pytest.raises(wire.NotPlain, match="nested"):
        wire.unpack(deep)
    with pytest.raises(wire.NotPlain, match="items"):
        wire.unpack(b"l" + struct.pack(">I", 2_000_000) + b"N" * 2_000_000)
    with pytest.raises(wire.NotPlain, match="entries"):
        wire.unpack(b"d" + struct.pack(">I", 30_000) + b"".join(wire.pack(i) + b"N" for i in range(30_000)))


def test_messages_follow_each_other_on_a_stream() -> None:
    stream = io.BytesIO()
    for value in (b"one", b"", b"x" * 3_000_000):
        frames.write(stream, value)
    stream.seek(0)
    assert [frames.read(stream) for _ in range(3)] == [b"one", b"", b"x" * 3_000_000]


def test_a_snapshot_shows_what_was_changed_in_place():
    lists, tensor = [[1.0, math.nan], {"a": 2}], torch.zeros(3)
    before = wire.snapshot(lists, tensor, print)
    assert before is not None and wire.snapshot(lists, tensor, len) == before  # callables are all alike
    tensor[1] += 1
    assert wire.snapshot(lists, tensor, print) != before
    tensor[1] -= 1
    lists[0].pop()
    assert wire.snapshot(lists, tensor, print) != before
    assert wire.snapshot(object()) is None
