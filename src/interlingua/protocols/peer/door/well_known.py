"""The headers of documents under /.well-known/: RFC 8615 wants them fetched afresh, under their own media type."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import Scope

_HEADERS = {"cache-control": "no-cache, no-store", "vary": "Accept", "x-content-type-options": "nosniff"}


def headers(request: HTTPConnection) -> dict[str, str]:
    """Returns the headers that an answer to a request needs, an error too; none elsewhere."""
    return dict(_HEADERS) if path_below(request.scope).startswith("/.well-known/") else {}


def path_below(scope: Scope) -> str:
    """Returns the path below the mount point of the door."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path[len(root) :] if root and path.startswith(root) else path)
