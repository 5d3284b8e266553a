"""Runs this node's agents for others: messages and tasks become runs, and their logs become answers.

Each run is reported exactly once. A run that starts here is reported in the transactions that write it (see
`run_feed`), any other when its log is read. Chunks of output go to a connected peer as they come; everything else that
a peer must know is a letter, and waits for the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ....engine.ids import new_id
from ....model import trace_context
from ....model.card import AgentCard
from ....model.content import Message
from ....model.documents import Change, Follow, Post, Settle, WriteResult
from ....model.errors import (
    AlreadyAnswered,
    Conflict,
    ErrorInfo,
    InterlinguaError,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    RunNotFound,
    StoreError,
    Unavailable,
)
from ....model.prompt_input import prompt_input
from ....model.question_forms import parse_answer
from ....model.run import Caller, Question, RunRequest
from ..projection import fed
from ..translate import parts, skills
from ..wire import frames
from .peers import Peer
from .run_feed import Witnessed
from .run_reports import Origin, Outcome, Telling, letter_to, reply_frame, status_event, task_frame
from .task_record import Task

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("interlingua.peer")

_SCOPES = ("do:run", "do:read", "do:answer", "do:cancel")
_PAGE = 500
_AGAIN = 1.0  # seconds


class Begun(Protocol):
    """A run that has begun, and its first report."""

    run: str

    @property
    def stale(self) -> bool:
        """Tells if nothing was kept, because the same run was begun before."""
        ...

    @property
    def numbers(self) -> list[int | None]:
        """Returns the numbers of the changes that were kept with the run."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """Returns the outcome of the run, where it is already known."""
        ...


class Usual:
    """A run that is reported by reading its log."""

    outcome = None

    def __init__(self, run: str, kept: WriteResult, before: int) -> None:
        self.run = run
        self.stale = kept.stale is not None
        self.numbers = kept.numbers[before:]


class Working:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._telling: dict[str, asyncio.Task[None]] = {}
        self.witnessed: dict[str, Witnessed] = {}  # by run: its reports while it is written
        self._awaited: dict[str, set[asyncio.Future[Outcome]]] = {}  # by run: the callers that wait for it

    @property
    def _cursors(self) -> str:
        return f"{self._node.journal.name}/work"

    async def start(self) -> None:
        """Resumes the reports that were not finished."""
        for run, upto in await self._node.engine.documents.followed(self._cursors):
            self._tell(run, upto)
        box = self._node.journal.box_in
        for letter in await self._node.engine.documents.letters(box, states=["accepted"], limit=10_000):
            frame = msgspec.json.decode(letter.body)
            peer = self._node.peers.with_id(letter.owner)
            if peer is None:
                continue
            try:
                await self._take_up(peer, frame, letter.number)
            except Exception as error:  # of one letter: the others, and the node, must not suffer from it
                log.error("message %s of %s could not be taken up: %s", letter.key, peer.id, error, exc_info=error)
                await self._node.journal.settle_in(letter.number, "done")

        await self._take_up_tasks()

    async def _take_up_tasks(self) -> None:
        """Begins the tasks that the process before this one had recorded, but not begun."""
        node = self._node
        for document in await node.engine.documents.search(
            node.journal.tasks_space, states=["submitted"], limit=10_000
        ):
            task = node.journal.read_task(document)
            peer = node.peers.with_id(task.peer)
            if task.kind == "run" and task.run is None and peer is not None:
                await self.delegated(peer, task)

    async def _take_up(self, peer: Peer, frame: dict[str, Any], number: int) -> None:
        """Begins the run of a message that the process before this one had only recorded."""
        id_ = _text(frame.get("task_id"))
        task = await self._node.journal.task(peer.scope, id_) if id_ is not None else None
        if task is None or task.run is None or task.message_id == frame["message_id"]:
            await self.message(peer, frame, number)
            return
        try:
            await self.answer(task, frame["parts"], self.caller_of(peer), frames.answered_in(frame))
        except InterlinguaError as error:
            log.info("message %s on task %s comes too late: %s", frame["message_id"], task.id, error)
        await self._node.journal.settle_in(number, "done")

    # -- incoming messages and tasks ----------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return len(self._node.engine.agents) > 0

    def agent(self, skill: Any = None) -> AgentCard:
        """Returns the agent for a skill; without a skill, the default agent."""
        cards = [agent.card for agent in self._node.engine.agents]
        if not cards:
            raise Unavailable("this node has no agents")
        wanted = skill if skill is not None else self._node.settings.default_agent
        if wanted is None:
            return cards[0]
        for card in cards:
            if skills.answers(card, wanted):
                return card
        known = ", ".join(card.name for card in cards)
        wanted = str(wanted)
        raise self._node.engine.agents.no_agent(wanted, f"there is no skill {wanted[:100]!r}; there are: {known}")

    def caller_of(self, peer: Peer) -> Caller:
        """Returns the caller of a peer: its key where it has shown one, else its place among this node's peers."""
        known = f"peer:{peer.known.did}" if peer.known.did else f"{self._node.journal.name}:{peer.id}"
        return Caller(known, peer.name, _SCOPES)

    async def message(self, peer: Peer, frame: dict[str, Any], number: int) -> None:
        """Begins the run of a peer's message that is already recorded."""
        node = self._node
        asked, skill = _text(frame.get("correlation_id")), _text(frame.get("skill_id"))
        origin = Origin(
            node.name, peer.scope, peer.id, "", _text(frame.get("task_id")), frame["message_id"], asked,
            _text(frame.get("context_id")), replies=asked is not None or not peer.ours,
        )  # fmt: skip
        task = None
        if origin.task is not None:  # the sender has a task for it, and gets its changes
            now = frames.now_z()
            task = Task(
                origin.task, "submitted", now, now, {"parts": frame["parts"]}, peer.scope, "run", peer.id,
                skill_id=skill, role=frame["role"], context_id=origin.context_id, message_id=origin.message_id,
            )  # fmt: skip
        try:
            card = self.agent(skill)
            metadata = _object(frame.get("metadata"))
            await self.begin(
                origin, card, frame["parts"], self.caller_of(peer), task=task, letter=number,
                trace=trace_context.read(metadata), metadata=metadata,
            )  # fmt: skip
        except InterlinguaError as error:
            await self._refuse(peer, origin, error.info(), number, task)

    async def _refuse(self, peer: Peer, origin: Origin, error: ErrorInfo, number: int, task: Task | None) -> None:
        """Answers a message or task that could not become a run."""
        journal = self._node.journal
        posts = [self._letter(peer, self._reply_frame(origin, [parts.text(error.message)], error))]
        more: list[Change] = []
        if task is not None:
            task.status, task.error, task.error_info = "failed", error.message, msgspec.to_builtins(error)
            posts.append(self._letter(peer, task_frame(self._node.name, task, "failed", None)))
            more = [journal.put_task(task), *(self.status(task, state) for state in ("submitted", "working", "failed"))]
        kept = await journal.keep([*posts, *more, Settle(journal.box_in, [number], "done")])
        if kept.stale is None:
            self._sent(peer, posts, kept.numbers[: len(posts)])

    async def delegated(self, peer: Peer, task: Task) -> None:
        """Begins the run of a peer's task that is already recorded. A task that cannot begin fails, and the peer is
        told so."""
        origin = Origin(self._node.name, peer.scope, peer.id, "", task.id, task.message_id, context_id=task.context_id)
        payload = task.payload if isinstance(task.payload, dict) else {}
        try:
            await self.begin(
                origin, self.agent(task.skill_id), task.input["parts"], self.caller_of(peer), task=task,
                trace=trace_context.read(payload.get("metadata")), metadata=task.metadata,
            )  # fmt: skip
        except InterlinguaError as error:
            await self._fail(peer, task, error)

    async def _fail(self, peer: Peer, task: Task, error: InterlinguaError) -> None:
        journal = self._node.journal
        task.status, task.error, task.error_info = "failed", error.message, msgspec.to_builtins(error.info())
        post = self._letter(peer, task_frame(self._node.name, task, "failed", None))
        events = [self.status(task, state) for state in ("working", "failed")]
        kept = await journal.keep([post, journal.put_task(task), *events])
        if kept.stale is None:
            self._sent(peer, [post], kept.numbers[:1])

    async def begin(
        self, origin: Origin, card: AgentCard, given: list[dict[str, Any]], caller: Caller, *, task: Task | None,
        letter: int | None = None, trace: dict[str, str] | None = None, metadata: dict[str, Any] | None = None,
        also: Callable[[str], list[Change]] | None = None,
    ) -> Begun:  # fmt: skip
        """Submits a run, and reports it from now on. The same message or task again is the same run. The changes of
        `also`, called with the run's id, are kept together with the first report, or not at all where that is stale."""
        node, journal = self._node, self._node.journal
        thread = await node.thread_of(origin.scope or origin.caller, origin.context_id)
        deleted = 0 if task is None else await journal.times_deleted(task)
        request = self._request(origin, card, given, caller, thread, deleted, trace, metadata)
        witnessed = self._witness(origin, card, request, task, letter, also)
        made = await node.engine.runs.submit(request, run=witnessed.run, participant=witnessed)
        if made.id == witnessed.run:
            with contextlib.suppress(StoreError):
                await witnessed.settled
                if not witnessed.stale:
                    if task is not None:
                        task.run, task.agent = made.id, card.key
                    return witnessed
        # The same was begun before, or nothing could be kept with the run.
        changes: list[Change] = [Follow(self._cursors, made.id, 0, 0)]
        if task is not None:
            task.run, task.agent = made.id, card.key
            changes.append(journal.put_task(task))
            if not task.version:
                changes.append(self.status(task, "submitted"))
        if letter is not None:
            changes.append(Settle(journal.box_in, [letter], "run"))
        more = also(made.id) if also is not None else []
        kept = await journal.keep([*changes, *more])
        if kept.stale is None and task is not None:
            task.version += 1
        elif kept.stale is not None and letter is not None:  # it was begun before a crash, and is reported already
            await node.journal.settle_in(letter, "run")
        self._tell(made.id, 0)
        return Usual(made.id, kept, len(changes))

    def _request(
        self, origin: Origin, card: AgentCard, given: list[dict[str, Any]], caller: Caller, thread: str | None,
        deleted: int, trace: dict[str, str] | None, metadata: dict[str, Any] | None,
    ) -> RunRequest:  # fmt: skip
        said = [parts.to_model(part) for part in given]
        key = f"{self._node.journal.name}:{origin.scope}:{origin.task or ''}:{origin.message_id or ''}"
        if deleted:
            key += f":{deleted}"  # it is another one, and not the one that was
        return RunRequest(
            card.name,
            card.version,
            prompt_input(card, said),
            messages=[Message("user", said, id=origin.message_id or "")],
            metadata={name: value for name, value in (metadata or {}).items() if name not in trace_context.NAMES},
            caller=caller,
            thread=thread,
            create_thread=thread is not None,
            when_busy="enqueue",
            key=key,
            extra={"peer": msgspec.to_builtins(origin)},
            trace=trace,
        )

    def _witness(
        self, origin: Origin, card: AgentCard, request: RunRequest, task: Task | None, letter: int | None,
        also: Callable[[str], list[Change]] | None,
    ) -> Witnessed:  # fmt: skip
        """Returns the reporter of a run that is about to be submitted: it reports in the transactions that write the
        run."""
        node, run, first = self._node, new_id(), list[Change]()
        telling = Telling(node, origin, card, run, request, self.came_to)
        if task is not None:
            telling.task = msgspec.structs.replace(task, run=run, agent=card.key)
            if not task.version:
                first.append(self.status(task, "submitted"))
        if letter is not None:
            first.append(Settle(node.journal.box_in, [letter], "run"))
        more = also(run) if also is not None else []
        return Witnessed(node, self, telling, run, self._cursors, [*first, *more], len(first))

    def outcome(self, run: str) -> asyncio.Future[Outcome]:
        """Returns a future for the end of a run or its question, done after the report."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(run, set()).add(waiting)
        return waiting

    def give_up(self, run: str, waiting: asyncio.Future[Outcome]) -> None:
        """Drops a caller that no longer waits for an outcome."""
        others = self._awaited.get(run)
        if others is not None:
            others.discard(waiting)
            if not others:
                del self._awaited[run]

    def came_to(self, run: str, outcome: Outcome) -> None:
        for waiting in self._awaited.pop(run, ()):
            if not waiting.done():
                waiting.set_result(outcome)

    # -- reports ------------------------------------------------------------------------------------------

    def go_on(self, run: str, upto: int, telling: Telling | None) -> None:
        """Continues the reports of a run by reading its log, because it is no longer reported while it is written.
        `telling` holds the reports so far."""
        if self._node.running:
            self._tell(run, upto, telling)

    def _tell(self, run: str, upto: int, telling: Telling | None = None) -> None:
        if run not in self._telling and run not in self.witnessed:
            self._telling[run] = task = self._node.spawn(self._project(run, upto, telling))
            task.add_done_callback(lambda _: self._telling.pop(run, None))

    async def _project(self, run: str, upto: int, telling: Telling | None) -> None:
        """Reports a whole run. A failure of the store is retried, because no other job reports the run."""
        while True:
            try:
                await self._project_from(run, upto, telling)
                return
            except StoreError as error:
                telling = None  # it is ahead of the reports that were kept
                log.warning("what run %s says could not be written down, and is tried again: %s", run, error)
            while True:
                await asyncio.sleep(_AGAIN)
                with contextlib.suppress(StoreError):
                    left = dict(await self._node.engine.documents.followed(self._cursors))
                    break
            if run not in left:
                return
            upto = left[run]

    async def _project_from(self, run: str, upto: int, telling: Telling | None) -> None:
        try:
            telling = telling or await self._told_so_far(run, upto)
        except RunNotFound:
            await self._node.journal.keep([Follow(self._cursors, run, upto, upto, ended=True)])
            return
        reader = self._node.engine.runs.reader(run, upto)
        try:
            while not reader.over:
                events = await reader.read()
                if not events and not reader.over:
                    continue
                follow = Follow(self._cursors, run, upto, reader.cursor, reader.over)
                if not await telling.tell(events, follow):
                    return  # another process tells it
                upto = reader.cursor
        except RunNotFound:
            await self._node.journal.keep([Follow(self._cursors, run, upto, upto, ended=True)])
        finally:
            reader.close()

    async def _told_so_far(self, run: str, upto: int) -> Telling:
        """Rebuilds the reporter of a run, as it was after the reports so far."""
        engine = self._node.engine
        view = await engine.runs.get(run)
        assert view.request is not None
        origin = msgspec.convert(view.request.extra["peer"], Origin)
        card = await engine.agents.card(view.agent, view.version)
        telling = Telling(self._node, origin, card, run, view.request, self.came_to)
        await telling.load(upto)
        after = 0
        while after < upto:  # once more through the projection, and not to anybody
            events = await engine.runs.page(run, after, _PAGE)
            for event in events:
                if event.seq <= upto:
                    await fed(engine, telling.projection, event)
            after = min(events[-1].seq, upto) if events else upto
        telling.told_before()
        return telling

    def status(self, task: Task, state: str) -> Change:
        return status_event(self._node, task, state)

    # -- answers and cancelling ---------------------------------------------------------------------------

    async def answer(self, task: Task, given: list[dict[str, Any]], by: Caller, named: str | None) -> None:
        """Answers the question of a task. Raises InvalidAnswer, and the question stays open; or AlreadyAnswered, where
        another answer was first. `named` is the question that is meant: the task may ask another one by now."""
        assert task.run is not None
        engine = self._node.engine
        question = await self._asked(task, named) if named is not None else await self._asked_now(task, by)
        errors: list[InvalidAnswer] = []
        for value in answers(question, given):
            try:
                await engine.questions.answer(question.id, value, by=by, door="peer")
                return
            except InvalidAnswer as error:
                errors.append(error)
        raise errors[0]

    async def _asked(self, task: Task, named: str) -> Question:
        record = await self._node.engine.questions.get(named)
        if task.run not in record.runs:
            raise InvalidRequest(f"task {task.id} has not asked question {named[:100]}")
        if record.state != "open":
            raise record.too_late()
        return record.question

    async def _asked_now(self, task: Task, by: Caller) -> Question:
        assert task.run is not None
        engine = self._node.engine
        for question in await engine.questions.open(run=task.run):
            if _may(question, by):
                return question
        if late := await engine.questions.last_answer_text(task.run):
            raise AlreadyAnswered(f"task {task.id} asks nothing{late}")
        raise InvalidRequest(f"task {task.id} asks nothing")

    async def cancel(self, task: Task, by: Caller) -> None:
        assert task.run is not None
        try:
            await self._node.engine.runs.cancel(task.run, by=by, reason="the task was cancelled")
        except (Conflict, NotFound):
            log.debug("task %s has ended before it could be cancelled", task.id)

    def _letter(self, peer: Peer, frame: dict[str, Any]) -> Post:
        return letter_to(self._node, peer, frame)

    def _reply_frame(self, origin: Origin, said: list[dict[str, Any]], error: ErrorInfo | None) -> dict[str, Any]:
        return reply_frame(self._node.name, origin, said, error)

    def _sent(self, peer: Peer, posts: list[Post], numbers: list[int | None]) -> None:
        for post, number in zip(posts, numbers, strict=True):
            assert number is not None
            peer.outbox.posted(number, msgspec.json.decode(post.body))


def answers(question: Question, given: list[dict[str, Any]]) -> list[Any]:
    """Returns the possible meanings of an answer's parts, the likeliest first: an object as it is, or written text."""
    found: list[Any] = []
    for part in given:
        if part["type"] == "data":
            content = part["content"]
            if isinstance(content, dict) and set(content) == {"answer"}:
                content = content["answer"]
            found.append(content)
    text = parts.text_of(given)
    if text or not found:
        found.append(parse_answer(question, text))
    return found


def _may(question: Question, by: Caller) -> bool:
    return question.answerer is None or question.answerer == by.id


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
