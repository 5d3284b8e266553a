"""A run that a server keeps, as `interlingua run ADDRESS` shows it: by the id that it has there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.errors import RunNotFound
from ..terminal.errors import CommandError, ExitCode
from ..terminal.events.views import TextView, View

if TYPE_CHECKING:
    from ..engine.agents.agent import Agent
    from ..engine.engine import Engine
    from ..model.run import Question
    from ..server.loading.target import Loaded


class ServerRun:
    def __init__(self, address: str, *, attachable: bool, attached: bool = False) -> None:
        """`address`: the target, as it may be shown. `attachable`: whether the server finds a run by its id.
        `attached`: whether the run was begun before."""
        self.id: str | None = None
        self._view: View | None = None
        self._address = address
        self._attachable = attachable
        self._attached = attached

    def found(self, run: str) -> None:
        """Takes the id of the run when the server sends it, and shows it once."""
        if self.id is None:
            self.id = run
            self._show()

    def show_in(self, view: View) -> None:
        self._view = view
        self._show()

    def _show(self) -> None:
        if self._view is None or self.id is None:
            return
        if isinstance(self._view, TextView):
            self._view.run_name = self.id
        self._view.aside(f"run {self.id} at {self._address}")

    async def exit_code(self, engine: Engine, run: str, code: ExitCode) -> ExitCode:
        """The exit code of the command. `run`: the run here; `code`: how that ended."""
        if code is ExitCode.FAILED and self._attached:
            error = (await engine.runs.get(run)).error
            if error is not None and error.code == RunNotFound.code:
                return ExitCode.NOT_FOUND
        return code

    def how_to_answer(self, question: Question) -> str:
        waits = f"run {self.id} at {self._address} waits" if self.id is not None else f"a run at {self._address} waits"
        if self.id is None or not self._attachable:
            return f"{waits}; answer it at the server"
        return f"{waits}; answer it at the server, or here: interlingua run {self._address} --attach {self.id}"


def agent_at(loaded: Loaded, address: str, run: str | None) -> tuple[Agent[..., object], ServerRun]:
    """The agent to run: the one that was chosen, or for the run of an id, one that goes on with that."""
    agent = loaded.chosen
    told = ServerRun(address, attachable=agent.attach is not None, attached=run is not None)
    if run is not None:
        if agent.attach is None:
            raise CommandError(
                f"nothing can go on with a run at {address}: {agent.no_attach}",
                hint="to answer what the run asks, go to its server",
            )
        agent = agent.attach(run)
    agent.on_remote_run = told.found
    return agent, told
