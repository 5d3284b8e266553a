"""The path of a request below the place where an app is served."""

from __future__ import annotations

from starlette.types import Scope


def path_below_root(scope: Scope) -> str:
    """Returns the path without the prefix that an outer app or a proxy put before it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) and path[len(root) :][:1] in ("", "/") else path
