"""Connects to participants in two ways: messages posted to an address, and one message per line over the pipes of a
command.

The document has no transport. The checker expects `POST /messages` at an address, `GET /tasks/{id}` with the messages
of a task as its `conversation`, and `GET /agents` with manifests; it also understands a server that answers a message
with messages, and keeps no conversations. Over pipes it sees only the messages to the program that started the command.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Answer, Http, Pipes

from ..base import Broken, Gone, NotApplicable, Subject, shown

Json = dict[str, Any]

USER, ORCHESTRATOR = "user", "orchestrator"
CANCELLED = 499
TEXTS = {
    "message": "content", "delegation_notice": "context_summary", "error_response": "error_message",
    "oversight_inquiry": "inquiry",
}  # fmt: skip
"""The types of messages, and the member that has the words of each."""

_ENDED = frozenset(
    {"succeeded", "success", "completed", "complete", "done", "finished", "failed", "error", "cancelled", "canceled"}
)


class Talk(msgspec.Struct, eq=False):
    """A task of the checker, and the messages in it."""

    task: str
    agent: str  # the recipient of the task
    sent: list[Json] = []  # by the checker
    said: list[Json] = []  # by anybody, as far as the server shows it
    inline: list[Json] = []  # the messages in the answers to those of the checker
    recorded: bool = False  # the server keeps all messages, those of the checker included
    over: bool = False  # the server says that it has ended
    start: int = 0  # the number of messages before it
    refusal: Refusal | None = None  # the refusal of the message that began it
    questions: list[Json] = []
    answered: list[Refusal | None] = []  # refusals of the checker's answers
    result: Json | None = None  # the last word


class Refusal(msgspec.Struct):
    told: Json | None  # the error_response; None where it was something else
    how: str  # in words


class Wire(Protocol):
    name: str
    lists: bool  # true if it can list the agents

    async def send(self, message: Json, talk: Talk) -> Refusal | None: ...
    async def look(self, talk: Talk) -> None:
        """Brings the messages of a task up to date."""

    async def agents(self) -> list[Any]: ...
    async def stop(self, talk: Talk) -> None: ...


def is_message(value: Any) -> bool:
    """Returns whether a value is meant as a message, however wrong. Other things that a server sends have neither a
    sender nor a type."""
    if not isinstance(value, dict):
        return False
    named = value.get("type")
    return "sender_id" in value or "recipient_id" in value or (isinstance(named, str) and named in TEXTS)


# -- an address -----------------------------------------------------------------------------------------------


class Address:
    lists = True

    def __init__(self, http: Http) -> None:
        self._http = http
        self.name = http.base

    async def send(self, message: Json, talk: Talk) -> Refusal | None:
        talk.sent.append(message)
        answer = await self._http.ask("POST", "/messages", message)
        how = _answered("POST /messages", answer)
        told: Any = None
        with contextlib.suppress(Broken):
            told = answer.json()
        came = [one for one in (told if isinstance(told, list) else [told]) if is_message(one)]
        if answer.status < 300 and not (came and came[0].get("type") == "error_response"):
            talk.inline += came
            return None
        return Refusal(came[0] if came else None, how)

    async def look(self, talk: Talk) -> None:
        answer = await self._http.ask("GET", f"/tasks/{quote(talk.task, safe='')}")
        if answer.status in (404, 405, 501):
            talk.said = list(talk.inline)
            return
        if answer.status != 200:
            raise Broken(_answered(f"GET /tasks/{talk.task}", answer))
        told = answer.json()
        said = told
        if isinstance(told, dict):
            said = next((told[name] for name in ("conversation", "messages") if name in told), None)
            talk.over = isinstance(told.get("status"), str) and told["status"].lower() in _ENDED
        if not isinstance(said, list):
            raise Broken(f"GET /tasks/{talk.task} has no conversation: {shown(told)}")
        for one in said:
            if not isinstance(one, dict):
                raise Broken(f"the conversation of a task has an entry that is no message: {shown(one)}")
        talk.said, talk.recorded = said, True

    async def agents(self) -> list[Any]:
        answer = await self._http.ask("GET", "/agents")
        if answer.status in (404, 405, 501):
            raise NotApplicable("the server has no list of agents (GET /agents), so that no manifest can be seen")
        if answer.status != 200:
            raise Broken(_answered("GET /agents", answer))
        told = answer.json()
        listed = told.get("agents") if isinstance(told, dict) else told
        if not isinstance(listed, list):
            raise Broken(f"GET /agents is answered with no list of agents: {shown(told)}")
        return listed

    async def stop(self, talk: Talk) -> None:
        await self._http.ask("POST", f"/tasks/{quote(talk.task, safe='')}/cancel")


def _answered(what: str, answer: Answer) -> str:
    body = answer.body.decode(errors="replace").strip()
    return f"{what} is answered {answer.status}" + (f": {shown(body)}" if body else "")


# -- a command ------------------------------------------------------------------------------------------------


class Lines:
    lists = False

    def __init__(self, pipes: Pipes, name: str) -> None:
        self._pipes = pipes
        self.name = name
        self._talks: list[Talk] = []

    async def send(self, message: Json, talk: Talk) -> Refusal | None:
        if self._pipes.ended:
            raise Gone("the process has ended")
        if talk not in self._talks:
            talk.start = len(self._pipes.messages)
            self._talks.append(talk)
        talk.sent.append(message)
        self._pipes.send(message)
        return None

    async def look(self, talk: Talk) -> None:
        others = {one.task for one in self._talks if one is not talk}
        talk.said = [
            one for one in self._pipes.messages[talk.start :] if is_message(one) and not _of(one.get("task_id"), others)
        ]
        if self._pipes.ended and not talk.said:
            raise Gone("the process ended before it said anything")
        talk.over = self._pipes.ended

    async def agents(self) -> list[Any]:
        raise NotApplicable("a command has no list of agents, so that no manifest can be seen")

    async def stop(self, talk: Talk) -> None:
        self._pipes.send(
            {"type": "error_response", "task_id": talk.task, "sender_id": ORCHESTRATOR, "recipient_id": talk.agent,
             "error_code": CANCELLED, "error_message": "nobody needs it any more"}
        )  # fmt: skip


def _of(task: Any, names: set[str]) -> bool:
    """Returns whether a task is one of these, or a part of one."""
    return isinstance(task, str) and any(task == name or task.startswith(f"{name}.") for name in names)


@contextlib.asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Wire]:
    if subject.address is not None:
        async with Http(subject) as http:
            try:
                await http.ask("GET", "/agents")
            except Gone as error:
                raise Unavailable(str(error)) from error
            yield Address(http)
        return
    async with Pipes.open(subject) as pipes:
        yield Lines(pipes, subject.command[0])
