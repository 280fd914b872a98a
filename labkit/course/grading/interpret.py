"""Run a Triton kernel through Triton's interpreter, on the CPU, and record what it reads and writes.

Stands alone (the learner's process loads it without labkit). TRITON_INTERPRET chooses the interpreter for a whole
process, before Triton's first import. This runs one kernel at a time instead, whatever that variable says, so that
kernels may be compiled beside it: it takes the plain function out of what @triton.jit made, and puts Triton's
language back as it was afterwards.

It starts no compiler and needs no GPU. Two things are stricter than on a GPU: an access outside every tensor that
the kernel was given raises OutOfBounds, where a GPU reads or overwrites something else; and bf16 goes through
numpy, which does not know it (upcast before `tl.dot`; a bf16 store cuts off instead of rounding).
"""

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Grid = tuple[int, ...]


class OutOfBounds(IndexError):
    """A kernel reached outside the tensors it was given."""


def plain(function: Any) -> Any:
    """The Python function behind a Triton kernel; anything else as it is."""
    if not _is_kernel(function):
        return function
    inner = function.fn  # of @triton.jit, or of @triton.autotune and the like around it
    while not inspect.isfunction(inner) and hasattr(inner, "fn"):
        inner = inner.fn
    return inner


def launcher(function: Any) -> Any:
    """A kernel as a function of the kernel's own arguments and `grid=`; anything else as it is.

    It returns a dict: "tensors" as the kernel left them, and for each of them by name the bytes "read" and
    "written". Its attribute `home` is the file of the kernel's own lines.
    """
    if not _is_kernel(function):
        return function
    own = inspect.signature(plain(function))

    def launch(*args: Any, grid: Grid, **named: Any) -> dict[str, dict[str, Any]]:
        record = run(function, grid, args, named)
        tensors = {name: value for name, value in record.arguments.items() if _is_tensor(value)}
        return {"tensors": tensors, "read": record.bytes("read"), "written": record.bytes("written")}

    bare = [each.replace(annotation=each.empty) for each in own.parameters.values()]
    last = inspect.Parameter("grid", inspect.Parameter.KEYWORD_ONLY)
    launch.__dict__["__signature__"] = inspect.Signature([*bare, last])
    launch.__dict__["home"] = plain(function).__code__.co_filename
    launch.__name__ = launch.__qualname__ = plain(function).__name__
    return launch


class Record:
    """What a launch did: `accesses` holds (program, "read" or "written", tensor's name, places), in order.

    Places are offsets in elements from the tensor's first one, each named once for one load or store; masked lanes
    are left out.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = dict(arguments)
        self.accesses: list[tuple[Grid, str, str, Any]] = []
        self.program: Grid = ()
        self._ranges = {}
        for name, value in self.arguments.items():
            if _is_tensor(value) and value.numel():
                steps = zip(value.shape, value.stride(), strict=True)
                reach = 1 + sum((size - 1) * stride for size, stride in steps)
                self._ranges[name] = value.data_ptr(), reach, value.element_size()

    def bytes(self, kind: str) -> dict[str, int]:
        """Bytes read or written through each tensor argument."""
        found = {name: 0 for name, value in self.arguments.items() if _is_tensor(value)}
        for _, what, name, places in self.accesses:
            if what == kind:
                found[name] += len(places) * self.arguments[name].element_size()
        return found

    def note(self, kind: str, addresses: Any, mask: Any) -> None:
        """Take down one load or store before it happens.

        Raises:
            OutOfBounds: it reaches outside every tensor.
        """
        import numpy

        mask = numpy.broadcast_to(mask, addresses.shape)
        left = numpy.unique(addresses[mask].astype(numpy.int64))
        for name, (base, reach, width) in self._ranges.items():
            here = (left >= base) & (left < base + reach * width)
            if here.any():
                self.accesses.append((self.program, kind, name, (left[here] - base) // width))
                left = left[~here]
        if len(left):
            raise OutOfBounds(self._outside(kind, int(left[0])))

    def _outside(self, kind: str, address: int) -> str:
        verb = {"read": "reads", "written": "writes"}[kind]
        if not self._ranges:
            return f"program {self.program} {verb} memory, and was given no tensor"

        def apart(name: str) -> int:
            base, reach, width = self._ranges[name]
            return max(base - address, address - base - reach * width)

        name = min(self._ranges, key=apart)
        base, reach, width = self._ranges[name]
        place = (address - base) // width
        return (
            f"program {self.program} {verb} element {place} of {name}, which has {reach} (0 to {reach - 1})"
        )


def run(kernel: Any, grid: Sequence[int], args: Sequence[Any], named: Mapping[str, Any]) -> Record:
    """Launch a kernel on CPU tensors, one program after the other.

    Args:
        kernel: what @triton.jit made.
        grid: how many programs along one, two or three axes.
        args, named: its arguments; launch options such as num_warps are left out.

    Raises:
        OutOfBounds: a load or store reached outside every tensor.
        Exception: whatever the kernel's own lines raise.
    """
    function = plain(kernel)
    own = inspect.signature(function)
    bound = own.bind(*args, **{key: value for key, value in named.items() if key in own.parameters})
    bound.apply_defaults()
    record = Record(bound.arguments)
    with _interpreter(record) as (interpreter, ready):
        constants = {name for name, each in own.parameters.items() if _constant(each.annotation)}
        given = {
            name: value if name in constants else interpreter._implicit_cvt(value)
            for name, value in bound.arguments.items()
        }
        x, y, z = (*map(int, grid), 1, 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(x, y, z)
        body = ready(function)
        for program in ((i, j, k) for i in range(x) for j in range(y) for k in range(z)):
            record.program = program[: len(grid)]
            interpreter.interpreter_builder.set_grid_idx(*program)
            try:
                body(**given)
            except interpreter.InterpreterError as error:  # of a function that the kernel calls
                raise _innermost(error, interpreter.InterpreterError) from None
    return record


@contextlib.contextmanager
def _interpreter(record: Record) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """Triton's language as its interpreter needs it, for the time of one launch.

    Yields the interpreter's module, and what makes a plain function ready to run: its globals are a copy, for the
    interpreter adds names of its own to them.
    """
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter, jit

    made: dict[Any, Any] = {}

    def ready(function: Any) -> Any:
        if function not in made:
            copy = _with_own_globals(function)
            made[function] = interpreter.FunctionRewriter(copy).rewrite_ast()
        return made[function]

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        return ready(function.fn)(*args, **kwargs)

    everything = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(everything)
    builder = interpreter.interpreter_builder
    try:
        # No second patch for functions that the kernel calls: Triton would not take it back.
        scope.set_attr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
        scope.set_attr(jit.JITFunction, "__call__", called)
        scope.set_attr(interpreter.InterpretedFunction, "__call__", called)
        # Triton 3.6 hands numpy an array of one number where newer ones want a scalar
        scope.set_attr(tl.tensor, "__index__", lambda self: self.handle.data.item())
        _watch(scope, builder, record)
        with numpy.errstate(all="ignore"):
            yield interpreter, ready
    finally:
        scope.restore()
        for name in ("grid_idx", "grid_dim"):
            setattr(builder, name, None)


def _with_own_globals(function: Any) -> Any:
    """The function again, what it closes over among its globals: the interpreter compiles its source anew."""
    code, cells = function.__code__, function.__closure__ or ()
    names = dict(function.__globals__)
    names |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    return copy


def _watch(scope: Any, builder: Any, record: Record) -> None:
    """Have the interpreter's four ways to memory tell the record; all others go through the first two."""
    load, store, swap, update = (
        getattr(builder, f"create_{name}")
        for name in ("masked_load", "masked_store", "atomic_cas", "atomic_rmw")
    )

    def masked_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        record.note("read", ptrs.data, getattr(mask, "data", mask))
        return load(ptrs, mask, *rest)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        record.note("written", ptrs.data, getattr(mask, "data", mask))
        return store(ptrs, value, mask, *rest)

    def atomic_cas(ptr: Any, *rest: Any) -> Any:
        for kind in ("read", "written"):
            record.note(kind, ptr.data, True)
        return swap(ptr, *rest)

    def atomic_rmw(operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        for kind in ("read", "written"):
            record.note(kind, ptr.data, mask.data)
        return update(operation, ptr, value, mask, *rest)

    for function in (masked_load, masked_store, atomic_cas, atomic_rmw):
        scope.set_attr(builder, f"create_{function.__name__}", function)


def _innermost(error: BaseException, kind: type[BaseException]) -> BaseException:
    while isinstance(error, kind) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _constant(annotation: Any) -> bool:
    return "constexpr" in (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "element_size")


def _is_kernel(value: Any) -> bool:
    """Whether it is what @triton.jit makes: launched with [grid], and holding a function."""
    kind = type(value)
    return hasattr(kind, "__getitem__") and hasattr(kind, "run") and hasattr(value, "fn")
