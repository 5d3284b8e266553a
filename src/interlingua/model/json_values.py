"""JSON values: validation, canonical encoding and hashing.

The system carries plain JSON only, so every incoming value is checked here once: no NaN or infinity, no numbers beyond
a double, no lone surrogates, only string keys, limited nesting.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable
from copy import copy as shallow_copy
from math import isfinite
from typing import Any

import msgspec

from .errors import Invalid, TooLarge
from .pointers import display, escape, truncate
from .whole_text import whole_value

log = logging.getLogger("interlingua.engine")

MAX_DEPTH = 100
MAX_BITS = 1024
"""The longest integer. Readers that know only doubles reject a longer one."""

encode = msgspec.json.encode
decode = msgspec.json.decode

_ordered = msgspec.json.Encoder(order="deterministic")
_SCALARS = (str, int, float, bool, type(None))
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 18


def check(
    value: Any, kind: type[Invalid] = Invalid, *, what: str = "value", max_depth: int = MAX_DEPTH, halves: bool = False
) -> bool:
    """Raises `kind`, with the path of the first violation, unless `value` is plain JSON.

    With `halves`, lone surrogates pass. Returns True if there are any.
    """
    has_surrogates = False
    stack: list[tuple[Any, str, int]] = [(value, "", 0)]
    while stack:
        item, path, depth = stack.pop()
        cls = type(item)
        if cls is str:
            if not item.isascii() and not _encodable(item):
                has_surrogates = True
                if not halves:
                    raise kind(
                        f"{what}: text with a lone surrogate at {display(path)}: split text between characters",
                        path=path,
                    )
        elif cls is dict:
            if depth >= max_depth:
                raise _too_deep(what, path, max_depth)
            has_surrogates |= _check_keys(item, path, kind, what, halves)
            for key, member in item.items():
                if type(member) is not str or not member.isascii():
                    stack.append((member, f"{path}/{escape(key)}", depth + 1))
        elif cls is list:
            if depth >= max_depth:
                raise _too_deep(what, path, max_depth)
            for index, member in enumerate(item):
                if type(member) is not str or not member.isascii():
                    stack.append((member, f"{path}/{index}", depth + 1))
        elif cls is int or cls is float:
            _check_number(item, path, kind, what)
        elif cls is not bool and item is not None:
            raise kind(
                f"{what}: {cls.__name__} at {display(path)} is not JSON; use text, numbers, true/false, null, "
                "lists and objects, or a type that the schema was made from",
                path=path,
            )
    return has_surrogates


def _check_keys(value: dict[Any, Any], path: str, kind: type[Invalid], what: str, halves: bool) -> bool:
    """Raises unless all keys are strings; returns True if one holds a lone surrogate."""
    has_surrogates = False
    for key in value:
        if type(key) is not str:
            raise kind(f"{what}: key {key!r} at {display(path)} is not a string", path=path)
        if not key.isascii() and not _encodable(key):
            has_surrogates = True
            if not halves:
                raise kind(f"{what}: a key with a lone surrogate at {display(path)}", path=path)
    return has_surrogates


def _check_number(value: float, path: str, kind: type[Invalid], what: str) -> None:
    if type(value) is float:
        if not isfinite(value):
            raise kind(f"{what}: {value!r} at {display(path)} is not a JSON number", path=path)
    elif int(value).bit_length() > MAX_BITS:
        raise kind(
            f"{what}: the number at {display(path)} is beyond every double (1.8e308); send it as text", path=path
        )


def _too_deep(what: str, path: str, max_depth: int) -> TooLarge:
    return TooLarge(f"{what}: nested deeper than {max_depth} levels at {path[:80]}…", path=truncate(path, 80))


def clean(value: Any, kind: type[Invalid] = Invalid, *, what: str = "value") -> Any:
    """Checks a value and replaces lone surrogates by U+FFFD."""
    if not check(value, kind, what=what, halves=True):
        return value
    log.warning("%s: a lone surrogate was replaced by U+FFFD", what)
    return whole_value(value)


def is_plain(body: bytes) -> bool:
    """True if decoded JSON needs no check: it has too few brackets for deep nesting, and no long number."""
    return body.count(b"{") + body.count(b"[") < MAX_DEPTH and _LONG_NUMBER not in body.translate(_ZEROS)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def canonical(value: Any) -> bytes:
    """Encodes a value canonically: sorted keys, no spaces. Equal values give equal bytes."""
    return _ordered.encode(value)


def digest(value: Any) -> str:
    """Hashes a JSON value, as hex. Answers and results of children are bound to it."""
    return hashlib.sha256(_ordered.encode(value)).hexdigest()


def to_plain(value: Any, encode_other: Callable[[Any], Any] | None = None) -> Any:
    """`msgspec.to_builtins`, with the members of sets in an order that is the same in every process.

    `encode_other` encodes what msgspec does not know.
    """
    return msgspec.to_builtins(_with_lists(value), enc_hook=encode_other)


def in_order(members: Iterable[Any]) -> list[Any]:
    """The members of a set in an order that depends on nothing but them."""
    return sorted(members, key=lambda member: canonical(msgspec.to_builtins(member)))


def _with_lists(value: Any) -> Any:
    """The same value with a list for each set in it. What holds no set is returned as it is."""
    cls = type(value)
    if cls in _SCALARS:
        return value
    if isinstance(value, set | frozenset):
        return in_order(_with_lists(member) for member in value)
    if isinstance(value, dict):
        members = {key: _with_lists(member) for key, member in value.items()}
        return members if any(members[key] is not member for key, member in value.items()) else value
    if isinstance(value, list | tuple):
        items = [_with_lists(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return cls._make(items) if hasattr(cls, "_make") else items
    if isinstance(value, msgspec.Struct):
        return _with_fields(value, value.__struct_fields__, msgspec.structs.force_setattr)
    if dataclasses.is_dataclass(cls):
        return _with_fields(value, [field.name for field in dataclasses.fields(cls)], object.__setattr__)
    return value


def _with_fields(value: Any, names: Iterable[str], put: Callable[[Any, str, Any], None]) -> Any:
    changed = shallow_copy(value)
    same = True
    for name in names:
        old = getattr(value, name, None)
        new = _with_lists(old)
        if new is not old:
            put(changed, name, new)
            same = False
    return value if same else changed


def copy(value: Any) -> Any:
    """Copies plain JSON deeply."""
    if isinstance(value, dict):
        return {key: copy(member) for key, member in value.items()}
    if isinstance(value, list):
        return [copy(member) for member in value]
    return value


def listed(value: Any) -> Any:
    """Turns tuples into lists, as encoding and decoding would."""
    if isinstance(value, dict):
        return {key: listed(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [listed(member) for member in value]
    return value


def contains(whole: Any, part: Any) -> bool:
    """True if `part` is a subset of `whole`: objects by member, all other values by equality."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and contains(whole[key], member) for key, member in part.items()
        )
    if isinstance(part, bool) or isinstance(whole, bool):
        return whole is part
    return bool(whole == part)
