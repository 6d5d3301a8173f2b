"""Observation of effects that a plug-in must not have: on global generators, clocks, and the state of objects."""

from __future__ import annotations

import contextlib
import random
import sys
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

from naspipe.testing.check import ConformanceError

CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")
"""The functions of ``time`` that are watched."""

# Types whose objects are not compared.
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


@contextlib.contextmanager
def global_generators_untouched(what: str, torch_too: bool = True) -> Iterator[None]:
    """Fail if a global generator is used or set within this context.

    Args:
        what: The code that runs, for the message.
        torch_too: Whether to watch torch's generator too. Blocks may use it, since the runtime seeds it for them.

    Raises:
        ConformanceError: A generator was used.
    """
    before = _generators(torch_too)
    yield
    touched = [name for name, state in _generators(torch_too).items() if name in before and state != before[name]]
    if touched:
        raise ConformanceError(
            f"{what} must draw from keys of the seed alone, but used the global generator of {', '.join(touched)}. "
            "Use naspipe.keyed_random, or another generator that is seeded by naspipe.derive_key."
        )


def stir_generators(number: int) -> None:
    """Set the global generators to another state, so that draws from them differ."""
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(number)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global generators when the context ends."""
    python = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    arrays = None if numpy is None else numpy.random.get_state()
    tensors = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)


def _generators(torch_too: bool) -> dict[str, object]:
    found: dict[str, object] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found["numpy.random"] = (name, keys.tobytes(), *rest)
    if torch_too and torch is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
    return found


@contextlib.contextmanager
def clocks_watched() -> Iterator[list[str]]:
    """Yield a list to which every clock of ``time`` is added that is read within this context."""
    read: list[str] = []
    originals = {name: getattr(time, name) for name in CLOCKS}

    def watched(name: str) -> Any:
        def clock() -> Any:
            read.append(f"time.{name}")
            return originals[name]()

        return clock

    for name in CLOCKS:
        setattr(time, name, watched(name))
    try:
        yield read
    finally:
        for name, original in originals.items():
            setattr(time, name, original)


def changes(before: Any, after: Any, path: str = "", seen: set[int] | None = None) -> Iterator[str]:
    """Yield the paths at which a value differs from an earlier deep copy of it.

    Objects are compared by their attributes, tensors by their bits, and other values by equality.
    """
    seen = set() if seen is None else seen
    if id(after) in seen:
        return
    seen.add(id(after))
    if type(before) is not type(after):
        yield path
    elif isinstance(after, Mapping):
        for key in {**before, **after}:
            if key not in before or key not in after:
                yield f"{path}[{key!r}]"
            else:
                yield from changes(before[key], after[key], f"{path}[{key!r}]", seen)
    elif isinstance(after, (list, tuple)):
        if len(before) != len(after):
            yield path
        else:
            for index, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from changes(one, other, f"{path}[{index}]", seen)
    elif hasattr(after, "dtype") and hasattr(after, "shape"):
        if not same_bits(before, after):
            yield path
    elif isinstance(after, random.Random):
        if before.getstate() != after.getstate():
            yield path
    elif hasattr(after, "__dict__") and not isinstance(after, _OPAQUE):
        one, other = vars(before), vars(after)
        for name in {**one, **other}:
            inner = f"{path}.{name}" if path else name
            if name not in one or name not in other:
                yield inner
            else:
                yield from changes(one[name], other[name], inner, seen)
    elif not isinstance(after, _OPAQUE) and before != after:
        yield path


def same_bits(one: Any, other: Any) -> bool:
    """Tell whether two tensors or arrays have the same type, shape and bits."""
    if one.dtype != other.dtype or tuple(one.shape) != tuple(other.shape):
        return False
    if type(one).__module__.partition(".")[0] != "torch":
        return bool(one.tobytes() == other.tobytes())
    from naspipe.files import digest_tensors

    if one.is_meta or other.is_meta:
        return bool(one.is_meta and other.is_meta)
    return digest_tensors({"": one}) == digest_tensors({"": other})
