"""Extensions: declarations on the card, each known by its URI. Read from flags and from cards, and checked.

There is no registry, and nothing here implements them. Where a peer requires one that this node does not have, the
owner is told before it works with the peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ....model import json_values
from ....model.errors import InvalidRequest

HMAC, MDNS, H2C = "acp:ext:hmac-v1", "acp:ext:mdns-v1", "acp:ext:h2c-v1"
BUILT_IN = (HMAC, MDNS, H2C)

Extension = dict[str, Any]  # uri, required, params

_RESERVED = re.compile(r"acp:ext:[a-z0-9][a-z0-9.-]*-v[0-9][0-9.]*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`\x00-\x1f\x7f]+")
_WEB = re.compile(r"https?://[^/?#\s]+.*", re.DOTALL)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LIMIT = 2000


def extension(uri: str, *, required: bool = False, params: dict[str, Any] | None = None) -> Extension:
    return {"uri": check_uri(uri), "required": required, "params": dict(params or {})}


def check_uri(value: Any, path: str = "/uri") -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{path} is missing: an extension is known by its URI", path=path)
    if len(value) > _LIMIT or not _URI.fullmatch(value):
        raise InvalidRequest(f"{path} is a URI such as https://example.com/ext/audit, got {value[:80]!r}", path=path)
    if value.startswith("acp:") and not _RESERVED.fullmatch(value):
        raise InvalidRequest(
            f"{path}: extensions of the protocol are acp:ext:NAME-vVERSION, got {value[:80]!r}", path=path
        )
    if value.lower().startswith(("http:", "https:")) and not _WEB.fullmatch(value):
        raise InvalidRequest(f"{path} is a whole address, got {value[:80]!r}", path=path)
    return value


def check(value: Any, path: str = "") -> Extension:
    """Returns one extension object, with its defaults. Raises InvalidRequest with the path of the fault."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path or 'an extension'} is an object with a uri", path=path)
    uri = check_uri(value.get("uri"), f"{path}/uri")
    required = value.get("required")
    if required is not None and not isinstance(required, bool):
        raise InvalidRequest(f"{path}/required is true or false, got {required!r:.80}", path=f"{path}/required")
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise InvalidRequest(f"{path}/params is an object", path=f"{path}/params")
    json_values.check(params or {}, InvalidRequest, what="params")
    return extension(uri, required=bool(required), params=params)


def read(value: Any) -> list[Extension]:
    """Returns the extensions on a remote card. Malformed ones are left out."""
    found = []
    for entry in value if isinstance(value, list) else []:
        try:
            found.append(check(entry))
        except InvalidRequest:
            continue
    return dedupe(found)


# -- flags ----------------------------------------------------------------------------------------------------


def parse_one(text: str) -> Extension:
    """Parses `URI[,required=true][,key=value…]`, as --extension takes it."""
    uri, *pairs = (part.strip() for part in text.split(","))
    required = False
    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"--extension: after the URI there are key=value pairs, got {pair[:80]!r}")
        if key.strip() == "required":
            if value.strip().lower() not in _TRUTH:
                raise InvalidRequest(f"--extension: required is true or false, got {value[:80]!r}")
            required = _TRUTH[value.strip().lower()]
        else:
            params[key.strip()] = value.strip()
    return extension(uri, required=required, params=params)


def parse_many(text: str) -> list[Extension]:
    """Parses `URI[,URI…]`, as --extensions takes it."""
    return dedupe(extension(uri) for part in text.split(",") if (uri := part.strip()))


# -- lists ----------------------------------------------------------------------------------------------------


def built_in(*, hmac: bool, mdns: bool, h2c: bool) -> list[Extension]:
    """Returns the extensions of active features."""
    active: tuple[tuple[bool, str, dict[str, Any]], ...] = (
        (hmac, HMAC, {"scheme": "hmac-sha256"}),
        (mdns, MDNS, {}),
        (h2c, H2C, {}),
    )
    return [extension(uri, params=params) for on, uri, params in active if on]


def dedupe(extensions: Iterable[Extension]) -> list[Extension]:
    """Returns each URI once: the first declaration counts."""
    found: dict[str, Extension] = {}
    for entry in extensions:
        found.setdefault(entry["uri"], entry)
    return list(found.values())


def missing_required(extensions: Any, supported: Iterable[str]) -> list[str]:
    """Returns the required extensions of a card that are not in `supported`. With any, the two nodes are not
    compatible."""
    known = set(supported)
    return [entry["uri"] for entry in read(extensions) if entry["required"] and entry["uri"] not in known]


def advice(extensions: Iterable[Extension]) -> list[str]:
    """Returns advice for the owner about the declared extensions."""
    told = []
    for entry in extensions:
        uri = entry["uri"]
        if uri.startswith("acp:ext:"):
            if uri not in BUILT_IN:
                told.append(f"{uri}: names that begin with acp:ext: are reserved for the protocol's own extensions")
        elif not uri.startswith("https://"):
            told.append(f"{uri}: an extension of your own should have a whole https:// address as its URI")
    return told
