"""Save museum records as JSON and get the same objects back.

Dataclasses, enums, dates and tuples survive the round trip; the type hints say
what to rebuild, so the file itself stays plain and readable. Tests at the end
are written for pytest, but need nothing from it.
"""

import dataclasses
import enum
import json
import types
import typing
from datetime import date
from functools import singledispatch


class PackError(ValueError):
    pass


@singledispatch
def pack(value):
    """Turn a value into something json.dumps accepts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise PackError(f"cannot pack {type(value).__name__}")


@pack.register
def _(value: enum.Enum):
    return value.name


@pack.register
def _(value: date):
    return value.isoformat()


@pack.register
def _(value: dict):
    return {str(key): pack(item) for key, item in value.items()}


@pack.register(list)
@pack.register(tuple)
def _(value):
    return [pack(item) for item in value]


@pack.register
def _(value: set):
    return sorted(pack(item) for item in value)


def unpack(hint, data, where="$"):
    """Rebuild a value of type `hint`; `where` is the path used in messages."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for choice in inner:
            try:
                return unpack(choice, data, where)
            except PackError:
                continue
        raise PackError(f"{where}: {data!r} fits none of the allowed types")
    if origin in (list, set, tuple):
        need(isinstance(data, list), where, "a list", data)
        need(origin is not tuple or len(data) == len(inner), where, f"{len(inner)} items", data)
        hints = inner if origin is tuple else inner * len(data)
        return origin(unpack(h, item, f"{where}[{n}]") for n, (h, item) in enumerate(zip(hints, data)))
    if origin is dict or dataclasses.is_dataclass(hint):
        need(isinstance(data, dict), where, "an object", data)
    if origin is dict:
        return {inner[0](key): unpack(inner[1], item, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        need(data.keys() == hints.keys(), where, f"the fields of {hint.__name__}", sorted(data))
        return hint(**{name: unpack(hints[name], data[name], f"{where}.{name}") for name in data})
    if isinstance(hint, enum.EnumMeta):
        need(data in hint.__members__, where, f"one of {', '.join(hint.__members__)}", data)
        return hint[data]
    if hint is date:
        need(isinstance(data, str), where, "a date", data)
        return date.fromisoformat(data)
    if hint is float and type(data) is int:
        return float(data)
    need(type(data) is hint, where, hint.__name__, data)
    return data


def need(condition, where, wanted, found):
    if not condition:
        raise PackError(f"{where}: expected {wanted}, found {found!r}")


class Material(enum.Enum):
    CLAY = 1
    BRONZE = 2
    GLASS = 3


@dataclasses.dataclass
class Loan:
    museum: str
    until: date


@dataclasses.dataclass
class Piece:
    name: str
    material: Material
    size_cm: tuple[float, float]
    tags: set[str] = dataclasses.field(default_factory=set)
    loan: Loan | None = None


LOAN = Loan("Harbour Hall", date(2026, 3, 1))
VASE = Piece("Blue vase", Material.GLASS, (12.0, 31.5), {"fragile", "roman"}, LOAN)


def test_round_trip():
    text = json.dumps(pack({"a": VASE, "b": Piece("Coin", Material.BRONZE, (2, 2))}))
    back = unpack(dict[str, Piece], json.loads(text))
    assert back["a"] == VASE
    assert back["b"].loan is None and back["b"].tags == set()


def test_error_names_the_place():
    damaged = pack([VASE])
    damaged[0]["size_cm"][1] = "tall"
    try:
        unpack(list[Piece], damaged)
    except PackError as error:
        assert "$[0].size_cm[1]" in str(error)
    else:
        raise AssertionError("a tall vase is not a number")


def test_sets_are_sorted_for_readable_files():
    assert pack(VASE)["tags"] == ["fragile", "roman"]


def demo():
    checks = [item for name, item in sorted(globals().items()) if name.startswith("test_")]
    for check in checks:
        check()
    return len(checks)
