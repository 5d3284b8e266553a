"""Reads JSON from the wire, also where it is not clean: the one place for every protocol, door, mount and transport.

msgspec reads first, so clean messages cost what they always did. Only what it refuses is read again, more patiently:

- half a surrogate pair becomes U+FFFD (`decode`), or is kept for the output to join it (`decode_pieces`);
- bytes that are no UTF-8 become U+FFFD;
- NaN, Infinity and numbers beyond a double's range become null, as JavaScript writes them. A door refuses a request
  with one and names it (`numbers="refuse"`), because null is not what the client meant;
- whole numbers of any size below that are kept exactly.

Each repair is logged. What stays unreadable raises `Unreadable`, which says what is wrong and where; `glimpse` finds
the id of such a message, so that its sender gets an answer and a request that waits for it gets an error.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from ..model.whole_text import whole, whole_value
from .channel import KEPT, TooLong

log = logging.getLogger("interlingua.wire")

T = TypeVar("T")

Numbers = Literal["null", "refuse"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_DIGITS = 308  # digits of a whole number that every reader takes for a number
_SHOWN = 3  # repairs that one line of the log names

_SCANNED = 64 * 1024  # bytes at the start of a message in which its id is looked for
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+|"', re.DOTALL)
_SCALAR = rb'(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)'
_BEGUN = re.compile(r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\d[\d.eE+-]*[.eE+-])?\s*")  # a value that is cut off


class Unreadable(ValueError):
    """A message that is not JSON. The text names the problem and its place."""


class TooDeep(Unreadable):
    """Arrays or objects are nested too deeply to be read."""


def decode(data: bytes | str, *, numbers: Numbers = "null") -> Any:
    """The value of a message, with whole characters only."""
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return _repaired(data, numbers)


def decode_as(data: bytes | str, read: Callable[[bytes | str], T], *, numbers: Numbers = "null") -> T:
    """Decodes like `decode`, with the decoder of a type. Raises msgspec.ValidationError for values that do not fit the
    type."""
    try:
        return read(data)
    except msgspec.ValidationError as error:
        if "out of range" not in str(error):
            raise
    except (ValueError, RecursionError):
        pass
    return read(_encode(_repaired(data, numbers)))


def clean(data: bytes | str) -> bytes:
    """The same message as JSON that every reader takes."""
    return _encode(_repaired(data, "null"))


def decode_pieces(data: bytes | str, is_piece: Callable[[Any], bool]) -> Any:
    """Decodes like `decode`. If the value is a piece of a stream, halves of characters are kept for `PairJoiner` to
    join."""
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return _repaired(data, "null", is_piece)


def _repaired(data: bytes | str, numbers: Numbers, is_piece: Callable[[Any], bool] | None = None) -> Any:
    findings = _Findings()
    value = _patient(data, findings)
    if numbers == "refuse" and findings.numbers:
        raise Unreadable(f"{findings.numbers[0]} is no number of JSON; send null, or text")
    clean = value if is_piece is not None and is_piece(value) else whole_value(value)
    if clean is not value:
        findings.repairs.append("half a character became U+FFFD")
    findings.log()
    return clean


class _Findings:
    """Collects the repairs of a patient reading."""

    def __init__(self) -> None:
        self.repairs: list[str] = []
        self.numbers: list[str] = []

    def log(self) -> None:
        repairs = [*self.repairs, *(f"{number} became null" for number in self.numbers)]
        if repairs:
            more = f" and {len(repairs) - _SHOWN} more" if len(repairs) > _SHOWN else ""
            log.warning("a message was not clean: %s%s", "; ".join(repairs[:_SHOWN]), more)


def _patient(data: bytes | str, findings: _Findings) -> Any:
    if type(data) is TooLong:
        raise Unreadable(data.problem)
    if isinstance(data, str):
        text = data
    else:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            text = str(data, "utf-8", "replace")
            findings.repairs.append(f"invalid UTF-8 at byte {error.start} became U+FFFD")

    def no_number(name: str) -> None:
        findings.numbers.append(name)

    def whole_number(digits: str) -> int | None:
        if len(digits) <= _DIGITS:
            return int(digits)
        no_number(f"a number of {len(digits)} digits")
        return None

    def number(digits: str) -> float | None:
        value = float(digits)
        if math.isfinite(value):
            return value
        no_number(digits[:40])
        return None

    try:
        return json.loads(text, parse_constant=no_number, parse_int=whole_number, parse_float=number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"the message {_fault(error, text)}") from None
    except RecursionError:
        raise TooDeep("the message is nested too deeply") from None


def fault(text: str) -> str:
    """Describes the problem of a text that msgspec could not read: "is not JSON: it is cut off at byte 12"."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        problem = _fault(error, text)
        return problem if problem.startswith("is not JSON") else f"is not JSON: it {problem}"
    except RecursionError:
        return "is nested too deeply"
    return "is not JSON: it holds a number that JSON has no place for, or half a character"


def _fault(error: json.JSONDecodeError, text: str) -> str:
    if not text.strip():
        return "is empty"
    end = len(text.encode("utf-8", "surrogatepass"))
    rest = text[error.pos :]
    cut_escape = "escape" in error.msg and len(rest) < 6 and '"' not in rest
    # A number that is cut off ("1.") is read as far as it goes.
    if error.msg.startswith("Unterminated") or cut_escape or _BEGUN.fullmatch(rest) or rest in (".", "e", "E"):
        return f"is cut off at byte {end}"
    place = len(text[: error.pos].encode("utf-8", "surrogatepass"))
    return f"is not JSON: {error.msg[:1].lower()}{error.msg[1:].removesuffix(' at')} at byte {place}"


# -- messages that cannot be read -----------------------------------------------------------------------------


class Glimpse(msgspec.Struct):
    """The readable parts of a JSON-RPC message that cannot be read as a whole."""

    id: int | str | None = None
    kind: Literal["request", "answer", None] = None


def glimpse(data: bytes) -> Glimpse:
    """The id of a message, and whether it asks or answers, as far as they can be read."""
    readable = members(data, "id")
    id_ = readable.get("id")
    kind: Literal["request", "answer", None] = None
    if "method" in readable or "params" in readable:
        kind = "request"
    elif "result" in readable or "error" in readable:
        kind = "answer"
    return Glimpse(id_ if type(id_) in (int, str) else None, kind)


def members(data: bytes, *at_end: str) -> dict[str, Any]:
    """The members of an object that cannot be read, as far as its beginning shows them: texts and whole numbers as they
    are, anything else as None. Those that `at_end` names are looked for at its end, too."""
    readable: dict[str, Any] = {}
    left_open = _from_start(bytes(data[:_SCANNED]), readable)
    if isinstance(data, TooLong):
        tail: bytes = data.tail
    elif len(data) > _SCANNED or not left_open:
        tail = bytes(data[-KEPT:])
    else:  # all of it was seen, and it is cut off
        return readable
    if data.lstrip()[:1] == b"{":
        for name in at_end:
            if name not in readable and (last := _at_end(name).search(tail)) is not None:
                readable[name] = _scalar(last[1])
    return readable


@lru_cache
def _at_end(name: str) -> re.Pattern[bytes]:
    """A member of the outermost object, behind which there are only texts and numbers."""
    more = rb'(?:,\s*"(?:[^"\\]|\\.)*"\s*:\s*' + _SCALAR + rb"\s*)*"
    return re.compile(
        rb'[,{]\s*"' + re.escape(name.encode()) + rb'"\s*:\s*(' + _SCALAR + rb")\s*" + more + rb"\}\s*$", re.DOTALL
    )


def _from_start(data: bytes, members: dict[str, Any]) -> bool:
    """Adds the members that the start of a message holds. Returns whether an array, object or string is left open."""
    depth, key, value = 0, "", False  # the key at the top level, and whether its value comes now
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in (b"{", b"["):
            if not depth and token == b"[":
                return True
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                return False
        elif not depth or token == b'"':  # a string that does not end
            return True
        elif depth != 1:
            pass
        elif token == b",":
            key, value = "", False
        elif token == b":":
            value = True
            members[key] = None
        elif not value:
            key = str(_scalar(token))
        else:
            if match.end() < len(data):  # else it may go on
                members[key] = _scalar(token)
            value = False
    return True


def _scalar(token: bytes) -> int | str | None:
    try:
        value = json.loads(str(token, "utf-8", "replace"), parse_float=_none, parse_constant=_none)
    except (ValueError, RecursionError):
        return None
    return whole(value) if type(value) is str else value if type(value) is int else None


def _none(_: str) -> None:
    return None


def encode(value: Any) -> bytes:
    """Encodes a body, also with whole numbers beyond 64 bits."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
