"""Delegates tasks to agents, for checks: the driver speaks as the orchestrator and as the user, and keeps what it saw.

Most checks look at a scene that several checks need (`once`): it is played once, and its result, also a failure, is
there for all of them. `talks` are all scenes that this server allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from interlingua.model.errors import Unavailable

from ..answers import WORD, answer_to
from ..base import WANTED, Broken, Gone, NotApplicable, Role, Subject, Suite, applies
from ..remembering import once
from .wires import ORCHESTRATOR, TEXTS, USER, Json, Refusal, Talk, Wire, opened

SUMMARY = "hello there"
_POLLS = (0.003, 0.005, 0.01, 0.02, 0.05, 0.1)  # seconds between looks at a task


class Driver:
    def __init__(self, wire: Wire, subject: Subject) -> None:
        self.wire = wire
        self.subject = subject
        self.patience = subject.patience
        self.quiet = subject.quiet
        self.refusals: list[Json] = []  # every error_response to a message of the checker
        self.going: list[Talk] = []  # tasks that may go on after the checks

    # -- who there is -------------------------------------------------------------------------------------

    async def agent(self, role: Role = "agent") -> str:
        """The id of the agent that has a role in the checks."""
        wanted: str | None = getattr(self.subject.roles, role)
        applies(wanted is not None or role == "agent", f"no agent is named for this ({WANTED[role]})")
        if wanted is not None:
            return wanted
        if not self.wire.lists:
            return "agent"  # a command is mostly one agent, under whatever name
        with contextlib.suppress(Broken, NotApplicable):
            for told in await manifests(self):
                if isinstance(told.get("id"), str):
                    return str(told["id"])
        raise NotApplicable("no agent is named (--agent), and the server lists none")

    async def known(self) -> dict[str, Json]:
        """The manifests that the server lists, by id."""
        with contextlib.suppress(Broken, NotApplicable):
            return {told["id"]: told for told in await manifests(self) if isinstance(told.get("id"), str)}
        return {}

    # -- speaking -----------------------------------------------------------------------------------------

    async def send(self, talk: Talk, message: Json) -> Refusal | None:
        refusal = await self.wire.send(message, talk)
        if refusal is not None and refusal.told is not None:
            self.refusals.append(refusal.told)
        return refusal

    async def begin(self, agent: str, attachments: list[Json] | None = None, *, sender: str = ORCHESTRATOR) -> Talk:
        """Delegates a new task to an agent."""
        talk = Talk(f"T{uuid.uuid4().int % 10**12}", agent)
        given, summary = self.subject.roles.input, SUMMARY
        attached = list(attachments or [])
        if given is not None and agent == self.subject.roles.agent:
            if isinstance(given, str):
                summary = given
            else:
                attached.append({"type": "python_object", "object": given})
        talk.refusal = await self.send(
            talk,
            {"type": "delegation_notice", "task_id": talk.task, "sender_id": sender, "recipient_id": agent,
             "context_summary": summary, "attachments": attached},
        )  # fmt: skip
        return talk

    async def tell(
        self, talk: Talk, content: str, *, sender: str = USER, to: str | None = None, **more: Any
    ) -> Refusal | None:
        return await self.send(
            talk,
            {"type": "message", "task_id": talk.task, "sender_id": sender, "recipient_id": to or talk.agent,
             "content": content, **more},
        )  # fmt: skip

    # -- hearing ------------------------------------------------------------------------------------------

    async def look(self, talk: Talk) -> list[Json]:
        await self.wire.look(talk)
        return talk.said

    async def backs(self, talk: Talk, *, odd: bool = False) -> list[Json]:
        """Returns the messages to the checker so far. `odd`: also those to a recipient of which nothing is known."""
        await self.wire.look(talk)
        if not self.wire.lists:
            return [told for told in talk.said if told.get("type") != "delegation_notice"]
        others = await self._others(talk) if odd else None
        return [
            told
            for told in talk.said
            if told.get("type") != "delegation_notice"
            and not by_us(told, talk)
            and _to_us(told.get("recipient_id"), others)
        ]

    async def _others(self, talk: Talk) -> set[str]:
        """The agents that are known to be there."""
        listed = await self.known()
        names: list[Any] = [*listed, talk.agent]
        for told in (*listed.values(), *talk.said):
            names += [told.get("sender_id"), told.get("overseer"), *_texts(told.get("allowed_agents"))]
            if told.get("type") == "delegation_notice":
                names.append(told.get("recipient_id"))
        return {name for name in names if isinstance(name, str)} - {USER, ORCHESTRATOR}

    async def heard(self, talk: Talk, before: Counter[str]) -> Json | None:
        """Waits for the next message to the checker; returns None if no more come."""
        loop = asyncio.get_running_loop()
        end, looks = loop.time() + self.patience, 0
        while True:
            last = talk.over or loop.time() > end
            left = before.copy()
            for told in await self.backs(talk, odd=last):
                key = json.dumps(told, sort_keys=True)
                if left[key] == 0:
                    before[key] += 1
                    return told
                left[key] -= 1
            if last:
                return None
            await asyncio.sleep(_POLLS[min(looks, len(_POLLS) - 1)])
            looks += 1

    async def play(self, agent: str, attachments: list[Json] | None = None, *, sender: str = ORCHESTRATOR) -> Talk:
        """A whole task: what the user is asked is answered, until there is a last word."""
        talk = await self.begin(agent, attachments, sender=sender)
        if talk.refusal is not None:
            talk.result = talk.refusal.told
            return talk
        self.going.append(talk)
        before: Counter[str] = Counter()
        while (told := await self.heard(talk, before)) is not None:
            talk.result = told
            if not self._asks(told, talk):
                if told.get("recipient_id") == USER and sender != USER and told.get("type") != "error_response":
                    continue  # a message to the user on the way
                break
            talk.questions.append(told)
            asker, asked = told.get("sender_id"), told.get("recipient_id")
            to = asker if isinstance(asker, str) and asker else agent
            said, more = _answering(told)
            refusal = await self.tell(talk, said, sender=ORCHESTRATOR if asked == ORCHESTRATOR else USER, to=to, **more)
            talk.answered.append(refusal)
            if refusal is not None:
                break
        if talk.result is not None:
            await self.look(talk)
            self.going.remove(talk)
        return talk

    def _asks(self, told: Json, talk: Talk) -> bool:
        if told.get("type") == "error_response":
            return False
        metadata = told.get("metadata")
        if isinstance(metadata, dict) and metadata.get("reply_expected") is False:
            return False
        if talk.agent == self.subject.roles.asking and not talk.questions:
            return True
        return told.get("recipient_id") == USER and talk.sent[0]["sender_id"] != USER

    async def tidy(self) -> None:
        for talk in self.going:
            with contextlib.suppress(Gone, Unavailable):
                await self.wire.stop(talk)


def _answering(told: Json) -> tuple[str, Json]:
    """The words of an answer to a question, and what else its message has where words are not enough."""
    asked = told.get("metadata")
    answer = answer_to(asked.get("answer_schema") if isinstance(asked, dict) else None)
    if answer == WORD:
        return WORD, {}
    return answer if isinstance(answer, str) else json.dumps(answer), {"metadata": {"answer": answer}}


def _to_us(recipient: Any, others: set[str] | None) -> bool:
    if not isinstance(recipient, str) or not recipient or recipient in (USER, ORCHESTRATOR):
        return True
    return others is not None and recipient not in others


def _texts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@contextlib.asynccontextmanager
async def connected(subject: Subject) -> AsyncIterator[Driver]:
    async with opened(subject) as wire:
        driver = Driver(wire, subject)
        try:
            yield driver
        finally:
            await driver.tidy()


async def names(d: Driver) -> dict[str, str]:
    found, listed = await d.known(), await d.wire.agents()
    return {name: name for name in found} if len(found) == len(listed) else {}


suite: Suite[Driver] = Suite("cap", connected, names=names, lasting=True)


# -- what was said --------------------------------------------------------------------------------------------


def by_us(told: Json, talk: Talk) -> bool:
    """Returns whether the checker sent a message of the record, even if the record changed it."""
    sender = told.get("sender_id")
    if isinstance(sender, str) and sender not in (USER, ORCHESTRATOR):
        return False
    return any(words(told) == words(sent) and kind(told) == kind(sent) for sent in talk.sent)


def kind(told: Json) -> str | None:
    """Returns the type that a message is meant to have: by the member that has its words, else by its `type`."""
    for name, text in TEXTS.items():
        if text in told:
            return name
    named = told.get("type")
    return named if isinstance(named, str) and named in TEXTS else None


def words(told: Json) -> str | None:
    found = next((told[name] for name in TEXTS.values() if name in told), None)
    return found if isinstance(found, str) else None


def attached(told: Json) -> list[Any]:
    return _texts(told.get("attachments"))


def called(told: Json) -> str:
    """Names a message in a report, so that its author can find out what is wrong with it."""
    named = told.get("type")
    return f"a {named}" if isinstance(named, str) else "a message"


@once
async def manifests(d: Driver) -> list[Json]:
    return [told for told in await d.wire.agents() if isinstance(told, dict)]
