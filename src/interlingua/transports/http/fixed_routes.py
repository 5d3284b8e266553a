"""Finds a route by its path, if the path has no parameters.

starlette tries one route after another, which for a door of thirty costs more than all the rest of its routing.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import Receive, Scope, Send


class IndexedRouter(Router):
    """Answers exactly as starlette's router does, only sooner."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes)
        self.fixed: dict[tuple[str, str], Route] = {}
        wide: list[BaseRoute] = []  # routes for more than one path, or any method
        for route in self.routes:
            if not isinstance(route, Route) or route.param_convertors or route.methods is None:
                wide.append(route)
                continue
            # An earlier wide route may take this path; then the order decides, as always.
            before = [other for other in wide if not isinstance(other, Route) or other.path_regex.match(route.path)]
            for method in route.methods:
                scope = {"type": "http", "method": method, "path": route.path}
                if not any(earlier.matches(scope)[0] is Match.FULL for earlier in before):
                    self.fixed.setdefault((method, route.path), route)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], scope.get("root_path", "")
            if root and path.startswith(root):
                path = path[len(root) :]
            route = self.fixed.get((scope["method"], path))
            if route is not None:
                scope.setdefault("router", self)
                scope["route"] = route
                scope["endpoint"] = route.endpoint
                scope.setdefault("path_params", {})
                await route.handle(scope, receive, send)
                return
        await super().app(scope, receive, send)
