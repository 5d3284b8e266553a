"""Sends the headers that browsers need before they let a page of another origin read an answer (CORS).

Only pages of origins that the owner named get them. Nothing here allows cookies: nothing uses them, and a page sends
its key in a header. `security.origins` checks before this who may call at all.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope, Send

from ..security.origins import HostPolicy

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_KEPT = 600  # seconds that a browser need not ask again


def page_of(scope: Scope, hosts: HostPolicy) -> str | None:
    """The origin of the page that asks, where it may read the answer."""
    origin = Headers(scope=scope).get("origin")
    return origin if origin is not None and hosts.may_read(origin) else None


def preflight(scope: Scope, page: str) -> Response | None:
    """The answer to a browser that asks whether a page may ask; None where the page itself asks."""
    headers = Headers(scope=scope)
    if scope["method"] != "OPTIONS" or "access-control-request-method" not in headers:
        return None
    wanted = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
    told = {
        "access-control-allow-origin": page,
        "access-control-allow-methods": _METHODS,
        "access-control-max-age": str(_KEPT),
        "vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
    }
    # Each by its name: `*` would not mean `authorization`.
    if named := [name for name in wanted if _TOKEN.fullmatch(name)]:
        told["access-control-allow-headers"] = ", ".join(named)
    return Response(status_code=204, headers=told)


def telling(page: str | None, send: Send) -> Send:
    """Sends an answer with what the browser of a page wants to know; where no page asks, that it could have been
    otherwise."""
    told = [(b"vary", b"Origin")]
    if page is not None:
        told += [
            (b"access-control-allow-origin", page.encode("latin-1")),
            (b"access-control-expose-headers", b"*"),
        ]

    async def with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *told]}
        await send(message)

    return with_headers
