"""Reads a POST: its messages, and the headers that must agree with them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ....doors.rpc_errors import Refused
from ....transports import json_text
from ....transports.jsonrpc.core import INVALID_PARAMS, PARSE_ERROR, Id, problem
from .. import wire

SESSION, VERSION, METHOD, NAME = "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"
_TELLING = frozenset(name.encode() for name in (VERSION, METHOD, NAME))


class Asked(msgspec.Struct):
    messages: list[dict[str, Any]]
    batch: bool

    @property
    def ids(self) -> list[Id]:
        """Returns the ids of the requests."""
        return [message["id"] for message in self.messages if "method" in message and "id" in message]

    @property
    def initializes(self) -> bool:
        return not self.batch and self.messages[0].get("method") == "initialize" and "id" in self.messages[0]


def by_name(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers of a request by name, read once, because starlette's mapping searches all of them at every
    access. The first of several counts, as there. Blanks around a value are no part of it, and not every server removes
    them."""
    return {name.decode("latin-1"): value.decode("latin-1").strip(" \t") for name, value in reversed(raw)}


def read(body: bytes, max_batch: int) -> Asked:
    try:
        decoded = json_text.decode(body, numbers="refuse")
    except json_text.Unreadable as error:
        raise Refused(400, str(error), PARSE_ERROR) from None
    batch = isinstance(decoded, list)
    messages = decoded if batch else [decoded]
    if not messages:
        raise Refused(400, "an empty batch; leave it out")
    if len(messages) > max_batch:
        raise Refused(400, f"a batch has at most {max_batch} entries")
    for message in messages:
        wrong = problem(message)
        if wrong is not None:
            raise Refused(400, wrong)
    if batch and 0 < sum("method" in message for message in messages) < len(messages):
        raise Refused(400, "a batch has requests and notifications, or answers; not both")
    return Asked(messages, batch)


def accepts(headers: Mapping[str, str], *kinds: str) -> bool:
    """Tells if the client accepts all of these media types. A client without the header accepts everything."""
    accept = headers.get("accept")
    return accept is None or _accepts(accept, kinds)


@lru_cache(maxsize=100)  # clients send the same again and again
def _accepts(accept: str, kinds: tuple[str, ...]) -> bool:
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return all("*/*" in accepted or kind in accepted or kind.partition("/")[0] + "/*" in accepted for kind in kinds)


def is_modern(headers: Mapping[str, str], asked: Asked) -> bool:
    """Tells if a POST is of the revision without sessions. A POST of an unknown revision is refused there."""
    version = headers.get(VERSION)
    if version is not None:
        return version not in wire.LEGACY
    return SESSION not in headers and not asked.initializes and wire.META_VERSION in _meta(asked.messages[0])


def _meta(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def check_modern(raw: Sequence[tuple[bytes, bytes]], headers: Mapping[str, str], asked: Asked) -> None:
    """Checks that the headers repeat the body. They are for proxies, which do not read bodies."""
    if asked.batch:
        raise Refused(400, f"{wire.MODERN} has no batches; send one message at a time")
    message = asked.messages[0]
    if "method" not in message:
        raise Refused(400, f"{wire.MODERN} has no requests that could be answered")
    if len(headers) < len(raw):  # some are there more than once
        names = [name for name, _ in raw if name in _TELLING]
        twice = next((name.decode() for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refused(400, f"the header {twice} is there more than once", wire.HEADER_MISMATCH)
    version = headers.get(VERSION)
    if "id" not in message:
        _known(version)
        return
    meta = _meta(message)
    missing = [key for key in (wire.META_VERSION, wire.META_CAPABILITIES) if key not in meta]
    if missing:
        raise Refused(400, f"params._meta lacks {' and '.join(missing)}", INVALID_PARAMS)
    _same(VERSION, version, meta[wire.META_VERSION])
    _same(METHOD, headers.get(METHOD), message["method"])
    if message["method"] == "tools/call" or (message["method"] == "agents/run" and NAME in headers):
        name = message["params"].get("name")
        if name is not None:
            _same(NAME, _plain(headers.get(NAME)), name)
    _known(version)


def _same(name: str, header: str | None, body: Any) -> None:
    if header is None or header != body:
        problem = "is missing" if header is None else f"says {header!r}"
        raise Refused(400, f"the header {name} {problem}; the message says {body!r}", wire.HEADER_MISMATCH)


def _known(version: str | None) -> None:
    if version != wire.MODERN:
        data = {"requested": version, "supported": [wire.MODERN]}
        raise Refused(400, f"revision {version!r} is not spoken here", wire.UNSUPPORTED_VERSION, data)


def _plain(value: str | None) -> str | None:
    """Returns a header's value, which is in base64 where a header could not hold it."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
