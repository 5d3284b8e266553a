"""The control API of a server: what its operations work with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from starlette.responses import Response, StreamingResponse

from ..doors.streams import PiecesStream
from ..engine.engine import Engine
from ..model.card import AgentCard
from ..model.run import Run
from ..security.auth import Authenticator
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
    ) -> None:
        self.engine = engine
        self.auth = auth
        self.mounts = mounts
        self.export = export

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
