"""What is compressed comes back bit for bit or not at all, and a store keeps to its budget."""

import dataclasses
import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.cache.host_store import HostStore
from labkit.cache.lossless import (
    DTYPES,
    Codec,
    compress_block,
    huffman_codec,
    lzma_codec,
    plane_report,
    plane_sizes,
    ratio,
    restore,
    zlib_codec,
)
from labkit.errors import LabkitError

CODECS = [zlib_codec(1), zlib_codec(9), huffman_codec(), lzma_codec(0)]
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int8]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bits(one) == bits(other)


def keys_like(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Numbers as a model's keys are: each channel with a scale of its own."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randn(shape[-1], generator=generator).exp()
    return (torch.randn(*shape, generator=generator) * scales).to(dtype)


@st.composite
def tensors(draw):
    """Any bits: NaNs with payloads, both zeros, infinities, subnormal numbers; any shape, also empty."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    size = int(numpy.prod(shape, dtype=int)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    flat = torch.empty(size, dtype=torch.uint8)
    flat.numpy()[:] = numpy.frombuffer(data, dtype=numpy.uint8)
    return flat.view(dtype).reshape(shape)


@settings(max_examples=300, deadline=None)
@given(tensors(), st.sampled_from(CODECS))
def test_any_bits_come_back(tensor, codec):
    before = bits(tensor)
    packed = compress_block(tensor, codec)
    back = restore(packed)
    assert same(back, tensor) and bits(tensor) == before
    assert packed.raw_bytes == len(before) and packed.stored_bytes <= packed.raw_bytes
    assert len(packed.planes) == tensor.element_size()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_blocks_come_back(dtype, codec):
    tensor = keys_like(4, 16, 2, 64, dtype=torch.float32)
    tensor = (tensor * 20).round().clamp(-127, 127).to(dtype) if dtype == torch.int8 else tensor.to(dtype)
    assert same(restore(compress_block(tensor, codec)), tensor)


def test_special_values_keep_their_bits():
    patterns = [0x7FC0, 0x7FC1, 0x7FA5, 0xFFC0, 0xFF81, 0x8000, 0x0000, 0x0001, 0x7F80, 0xFF80]
    tensor = torch.tensor(patterns, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    back = restore(compress_block(tensor))
    assert back.view(torch.uint16).tolist() == patterns
    zeros = torch.tensor([-0.0, 0.0])
    assert restore(compress_block(zeros)).signbit().tolist() == [True, False]


def test_views_are_stored_as_they_read():
    base = keys_like(6, 10, 8)
    for view in (base[::2, 1:7].transpose(0, 2), base[:, 3], base[2, 4, 5], base.expand(2, 6, 10, 8)[1:]):
        assert same(restore(compress_block(view)), view)
    wanting = torch.randn(3, 3, requires_grad=True)
    assert same(restore(compress_block(wanting)), wanting.detach())


def test_what_comes_back_is_its_own():
    for dtype in TYPES:
        packed = compress_block(torch.ones(5, dtype=dtype))
        first = restore(packed)
        first.zero_()
        assert restore(packed).eq(1).all()


def test_planes_separate_what_shrinks_from_what_does_not():
    high, low = compress_block(keys_like(16, 2, 64)).planes
    assert high.coded and len(high.data) < 0.6 * high.size
    assert not low.coded and len(low.data) == low.size == 16 * 2 * 64
    tensor = torch.tensor([0x0102, 0x0304], dtype=torch.int16).view(torch.bfloat16)
    assert [plane.data for plane in compress_block(tensor).planes] == [b"\x01\x03", b"\x02\x04"]
    words = torch.tensor([0x01020304], dtype=torch.int32).view(torch.float32)
    assert [plane.data for plane in compress_block(words).planes] == [b"\x01", b"\x02", b"\x03", b"\x04"]


def test_planes_beat_the_bytes_as_they_lie():
    tensor = keys_like(64, 2, 64)
    for codec in CODECS:
        assert compress_block(tensor, codec).stored_bytes < 0.95 * len(codec.compress(bits(tensor)))


def test_ratio_and_report():
    tensor = keys_like(32, 64)
    packed = compress_block(tensor)
    report = plane_report(tensor)
    assert report == plane_sizes(packed)
    assert [plane.name for plane in report] == ["byte 1", "byte 0"]
    assert [plane.before for plane in report] == [2048, 2048] and report[1].after == 2048
    assert ratio(packed) == 4096 / sum(plane.after for plane in report) > 1.2
    assert ratio(compress_block(torch.zeros(100_000))) > 100
    assert ratio(compress_block(torch.empty(0, 3))) == 1.0
    assert ratio(compress_block(torch.randint(-128, 128, (4096,), dtype=torch.int8))) == 1.0


def damaged(packed, plane: int, data: bytes):
    planes = list(packed.planes)
    planes[plane] = dataclasses.replace(planes[plane], data=data)
    return dataclasses.replace(packed, planes=tuple(planes))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CODECS), st.integers(0, 1), st.randoms(use_true_random=False))
def test_damage_is_noticed(codec, plane, rng):
    packed = compress_block(keys_like(8, 64), codec)
    data = bytearray(packed.planes[plane].data)
    kind = rng.choice(["bit", "cut", "more", "swap"])
    if kind == "bit":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "more":
        data += b"x"
    else:
        data = bytearray(packed.planes[1 - plane].data)
    broken = damaged(packed, plane, bytes(data))
    try:
        back = restore(broken)
    except LabkitError as error:
        assert "damaged" in error.what and "8, 64" in error.what
    else:  # a codec may ignore some bits of its container: then nothing was lost
        assert same(back, restore(packed))


@pytest.mark.parametrize("change", [{"shape": (64, 8)}, {"dtype": torch.float16}, {"checksum": 1}], ids=str)
def test_another_shape_or_type_is_damage(change):
    with pytest.raises(LabkitError, match="damaged"):
        restore(dataclasses.replace(compress_block(keys_like(8, 64)), **change))


def test_a_byte_in_the_wrong_plane_is_damage():
    """The checksum runs over the planes one after the other, so it alone would not see this."""
    packed = compress_block(torch.tensor([1.0, 3.5], dtype=torch.bfloat16))
    joined = b"".join(plane.data for plane in packed.planes)
    with pytest.raises(LabkitError, match="damaged"):
        restore(damaged(damaged(packed, 0, joined[:3]), 1, joined[3:]))


def test_damage_to_a_plane_stored_as_it_is():
    packed = compress_block(keys_like(8, 64))
    assert not packed.planes[1].coded
    data = bytearray(packed.planes[1].data)
    data[77] ^= 4
    with pytest.raises(LabkitError, match="damaged"):
        restore(damaged(packed, 1, bytes(data)))


@pytest.mark.parametrize("call", [
    lambda: compress_block(torch.zeros(3, dtype=torch.complex64)), lambda: zlib_codec(0), lambda: zlib_codec(10),
    lambda: lzma_codec(10), lambda: lzma_codec(-1), lambda: HostStore(-1),
])  # fmt: skip
def test_misuse_is_refused(call):
    with pytest.raises(LabkitError):
        call()


KEEP = Codec("as it is", lambda data: data, lambda data: data)


def filled(budget: int = 100) -> HostStore:
    """a, b, c of 20 bytes each, a the least recently used."""
    store = HostStore(budget, KEEP)
    for number, key in enumerate("abc"):
        assert store.put(
            key, [torch.full((6,), number, dtype=torch.bfloat16), torch.ones(8, dtype=torch.int8)]
        )
    return store


def test_the_least_recently_used_goes_first():
    store = filled(budget=60)
    assert "a" in store  # looking is not using
    assert store.get("a") is not None and store.get("x") is None
    assert store.put("d", [torch.ones(10, dtype=torch.bfloat16)])
    assert [key in store for key in "abcd"] == [True, False, True, True]
    assert store.put("e", [torch.ones(15, dtype=torch.uint8)])
    assert [key in store for key in "acde"] == [True, False, True, True]
    stats = store.stats
    assert (stats.entries, stats.stored_bytes, stats.evictions) == (3, 55, 2)
    assert (stats.hits, stats.misses) == (1, 1)


def test_what_exceeds_the_budget_is_not_kept_and_evicts_nobody():
    store = filled()
    assert not store.put("d", [torch.ones(101, dtype=torch.uint8)])
    assert len(store) == 3 and "d" not in store and store.stats.evictions == 0
    assert not store.put("a", [torch.ones(101, dtype=torch.uint8)])
    assert "a" not in store  # what it had is out of date


def test_a_key_is_replaced():
    store = filled()
    assert store.put("a", [torch.arange(5.0)])
    assert store.stats.stored_bytes == 60 and store.stats.evictions == 0
    assert same(store.get("a")[0], torch.arange(5.0))
    assert not filled(60).put("a", [torch.ones(61, dtype=torch.uint8)])
    assert filled(60).put("a", [torch.ones(60, dtype=torch.uint8)])  # the whole budget, and not a byte more


def test_discard_and_clear():
    store = filled()
    store.discard("a")
    store.discard("a")
    assert len(store) == 2 and store.stats.stored_bytes == store.stats.raw_bytes == 40
    store.get("b")
    store.clear()
    stats = store.stats
    assert (stats.entries, stats.raw_bytes, stats.stored_bytes, stats.hits, stats.ratio) == (0, 0, 0, 1, 1.0)


def test_a_damaged_entry_is_dropped():
    store = filled()
    packed = store._entries["b"]
    store._entries["b"] = [packed[0], damaged(packed[1], 0, b"\0" * 8)]
    with pytest.raises(LabkitError, match="damaged"):
        store.get("b")
    assert store.get("b") is None and store.stats.stored_bytes == 40


def test_a_refused_type_leaves_the_store_as_it_was():
    store = filled()
    with pytest.raises(LabkitError):
        store.put("a", [torch.ones(3), torch.zeros(3, dtype=torch.complex64)])
    assert same(store.get("a")[0], torch.full((6,), 0, dtype=torch.bfloat16))


@pytest.mark.parametrize("seed", range(20))
def test_a_store_equals_a_plain_list(seed):
    """Random calls against a list ordered by use, with compression that makes sizes vary."""
    rng, store = random.Random(seed), HostStore(3000)
    plain: list[tuple[int, list[torch.Tensor], int]] = []  # key, tensors, stored bytes
    for _ in range(150):
        key = rng.randrange(12)
        old = next((entry for entry in plain if entry[0] == key), None)
        action = rng.choice(["put", "put", "get", "get", "discard"])
        if action != "get":
            plain = [entry for entry in plain if entry is not old]
        if action == "put":
            new = [
                keys_like(rng.randrange(1, 6), 32, seed=rng.randrange(99)) for _ in range(rng.randrange(4))
            ]
            size = sum(compress_block(tensor).stored_bytes for tensor in new)
            assert store.put(key, new)
            plain.append((key, new, size))
            while sum(entry[2] for entry in plain) > 3000:
                plain.pop(0)
        elif action == "discard":
            store.discard(key)
        elif old is None:
            assert store.get(key) is None
        else:
            found = store.get(key)
            assert len(found) == len(old[1]) and all(map(same, found, old[1]))
            plain = [entry for entry in plain if entry is not old] + [old]
        assert list(store._entries) == [entry[0] for entry in plain]
        stats = store.stats
        assert stats.stored_bytes == sum(entry[2] for entry in plain) <= 3000
        assert stats.raw_bytes == sum(t.numel() * 2 for entry in plain for t in entry[1])
