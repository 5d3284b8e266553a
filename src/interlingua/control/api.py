"""The control API of a server: what its operations work with, and its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ..engine.engine import Engine
from ..model.card import AgentCard
from ..model.run import Run
from ..security.auth import Authenticator
from ..transports.http.body import HttpLimits, json_response
from ..transports.http.event_stream import PiecesStream
from . import wire
from .views import run_view

__all__ = ["ControlApi", "MountState"]


class MountState(Protocol):
    """A mount, as the server that keeps it shows it."""

    @property
    def mount(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def since(self) -> int: ...

    @property
    def agents(self) -> list[str]: ...

    @property
    def reason(self) -> str: ...

    @property
    def tries(self) -> int: ...

    @property
    def next_try_in(self) -> float | None: ...


class ControlApi:
    """`mounts` lists the mounts of the server; `export` writes the audit trail of a task."""

    def __init__(
        self,
        engine: Engine,
        auth: Authenticator,
        *,
        mounts: Callable[[], Sequence[MountState]],
        export: Callable[[str], AsyncIterator[bytes]],
        limits: HttpLimits | None = None,
    ) -> None:
        from . import operations_questions, operations_runs, operations_server, operations_threads

        self.engine = engine
        self.auth = auth
        self.mounts = mounts
        self.export = export
        self.operations = [
            *operations_server.OPERATIONS, *operations_runs.OPERATIONS, *operations_questions.OPERATIONS,
            *operations_threads.OPERATIONS,
        ]  # fmt: skip
        self._limits = limits or HttpLimits()

    def routes(self) -> list[BaseRoute]:
        from .operation import routes

        return [*routes(self, self.operations, self._limits)]

    def asgi(self) -> ASGIApp:
        """Returns the operations as an app, which answers unknown paths as it answers all errors."""
        return Starlette(routes=self.routes(), exception_handlers={HTTPException: _no_route})

    def card_of(self, name: str, version: str | None) -> AgentCard | None:
        """Returns the card of an agent that is known here."""
        agent = self.engine.agents.find(name, version) or self.engine.agents.find(name)
        return agent.card if agent is not None else None

    def show(self, run: Run) -> wire.Run:
        return run_view(run, self.card_of(run.agent, run.version))

    def stream(self, pieces: AsyncIterator[bytes]) -> Response:
        """Answers with an event stream, which ends with its reader."""
        return PiecesStream(pieces)

    def download(self, pieces: AsyncIterator[bytes], name: str) -> Response:
        return StreamingResponse(
            pieces, media_type="application/jsonl",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )  # fmt: skip


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"{request.method} {request.url.path}: {error.detail}"
    failure = wire.Failure(error=wire.Problem(code=code, message=message))
    return json_response(failure, error.status_code, dict(error.headers or {}))
