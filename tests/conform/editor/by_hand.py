"""A small server of the Agent Client Protocol, versions 1 and 2, written by hand from the documents: what it answers.

It uses nothing of ours. Its agents are an option: echo, careful (asks), slow (runs until it is cancelled) and broken
(fails). A defect, one of `broken.DEFECTS`, makes it break one rule. `broken.py` serves it over stdin and stdout,
`broken_web.py` over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

AGENTS = ("echo", "careful", "slow", "broken")
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
BOTH = ("session/new", "session/resume", "session/list", "session/delete", "session/close", "session/prompt",
        "session/set_config_option")  # fmt: skip
METHODS = {1: (*BOTH, "session/load", "session/set_mode"), 2: BOTH}
Message = dict[str, Any]


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.told = {"code": code, "message": message}


class Session:
    def __init__(self, cwd: str) -> None:
        self.id, self.cwd = uuid.uuid4().hex, cwd
        self.directories: list[str] = []
        self.options = {"agent": "echo", "mood": "calm"}
        self.said: list[Message] = []  # updates, to be replayed
        self.stops: list[asyncio.Event] = []  # of turns that run or wait
        self.turn = asyncio.Lock()
        self.running: set[asyncio.Task[Any]] = set()


class Connection:
    """One client. `emit` takes whole frames: objects, or arrays."""

    def __init__(self, emit: Callable[[Any], None], sessions: dict[str, Session], defect: str | None) -> None:
        self.emit, self.sessions, self.defect = emit, sessions, defect
        self.version = 0
        self.opened: set[str] = set()
        self.prompts: dict[Any, asyncio.Event] = {}  # what cancels each of them
        self.waiting: dict[str, asyncio.Future[Message]] = {}  # requests of ours
        self.tasks: set[asyncio.Task[None]] = set()

    # -- frames ------------------------------------------------------------------------------------------------

    def frame(self, data: bytes) -> None:
        try:
            message = json.loads(data.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError):
            self.emit(self.error(-32700, "no JSON"))
            return
        task = asyncio.get_running_loop().create_task(self._batch(message) if isinstance(message, list) else
                                                      self._single(message))  # fmt: skip
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def error(self, code: int, message: str) -> Message:
        told: Message = {"jsonrpc": "2.0", "error": {"code": code, "message": message}}
        return told if self.defect == "no-id" else {**told, "id": None}

    async def _single(self, message: Any) -> None:
        after: list[Message] = []
        answer = await self._entry(message, after)
        if answer is not None:
            self.emit(answer)
        for update in after:
            self.emit(update)

    async def _batch(self, entries: list[Any]) -> None:
        after: list[Message] = []
        if not entries:
            self.emit(self.error(-32600, "an empty batch"))
            return
        if all(_is_response(entry) for entry in entries):
            for entry in entries:
                self._answered(entry)
            return
        if self.defect == "whole-batch-fails" and any(not isinstance(e, dict) or "method" not in e for e in entries):
            self.emit(self.error(-32600, "an invalid entry"))
            return
        doing = [asyncio.ensure_future(self._entry(None if _is_response(e) else e, after)) for e in entries]
        if self.defect == "early-array":
            await asyncio.sleep(0.05)
            answers = [task.result() for task in doing if task.done()]
        else:
            answers = [await task for task in doing]
        told = [answer for answer in answers if answer is not None]
        if self.defect == "no-array":
            for answer in told:
                self.emit(answer)
        elif told or self.defect == "empty-array":
            self.emit(told)
        for update in after:
            self.emit(update)

    async def _entry(self, message: Any, after: list[Message]) -> Message | None:
        """The answer to one message, and what is to follow it."""
        if _is_response(message):
            self._answered(message)
            return self.error(-32600, "nobody asked") if self.defect == "answers-responses" else None
        if (
            not isinstance(message, dict)
            or message.get("jsonrpc") != "2.0"
            or not isinstance(message.get("method"), str)
        ):
            return self.error(-32600, "no message")
        id_, method, params = message.get("id"), message["method"], message.get("params", {})
        if "id" not in message:
            self._noticed(method, params)
            known = method in ("session/cancel", "$/cancel_request", "session/prompt")
            return self.error(-32601, method) if self.defect == "answers-notifications" and not known else None
        if isinstance(id_, bool) or not isinstance(id_, int | str):
            return self.error(-32600, "no id")
        if self.defect == "rounds-ids" and isinstance(id_, int):
            id_ = int(float(id_))
        try:
            result = await self._called(message["id"], method, params, after)
            null = {"error": None} if self.defect == "error-is-null" else {}
            return {"jsonrpc": "2.0", "id": id_, "result": result, **null}
        except Refused as refused:
            return {"jsonrpc": "2.0", "id": id_, "error": refused.told}

    def _answered(self, message: Message) -> None:
        future = self.waiting.pop(str(message.get("id")), None)
        if future is not None and not future.done():
            future.set_result(message)

    def _noticed(self, method: str, params: Any) -> None:
        session = self.sessions.get(params.get("sessionId", "")) if isinstance(params, dict) else None
        if method == "session/cancel" and session is not None:
            for stop in session.stops:
                stop.set()
        elif method == "$/cancel_request" and isinstance(params, dict) and params.get("requestId") in self.prompts:
            self.prompts[params["requestId"]].set()

    # -- methods -----------------------------------------------------------------------------------------------

    async def _called(self, id_: Any, method: str, params: Any, after: list[Message]) -> Message:
        if method == "initialize":
            return self._initialize(params)
        if not self.version:
            if self.defect != "before-initialize" or method != "session/new":
                raise Refused(-32600, "initialize first")
        elif method not in METHODS[self.version]:
            raise Refused(-32601, f"no method {method}")
        bad = -32603 if self.defect == "invalid-params" else -32602
        if not isinstance(params, dict):
            raise Refused(bad, "params are an object")
        if method == "session/list":
            if params.get("cursor") is not None:
                raise Refused(bad, "no such cursor")
            found = [s for s in self.sessions.values() if params.get("cwd") in (None, s.cwd)]
            return {
                "sessions": [{"sessionId": s.id, "cwd": s.cwd, "additionalDirectories": s.directories} for s in found]
            }
        if method == "session/delete":
            self.sessions.pop(params.get("sessionId", ""), None)
            return {}
        if method == "session/new":
            return self._new(params, after, bad)
        session = self.sessions.get(params.get("sessionId", "")) if isinstance(params.get("sessionId"), str) else None
        if method in ("session/load", "session/resume") and session is not None:
            return self._open(session, method, params, after)
        if session is None or session.id not in self.opened:
            raise Refused(bad if not isinstance(params.get("sessionId"), str) else -32002, "no such session")
        match method:
            case "session/set_mode":
                return self._set(session, "agent", params.get("modeId"), bad) and {}
            case "session/set_config_option":
                return self._set(session, params.get("configId"), params.get("value"), bad)
            case "session/close":
                if session.running and self.defect != "close-lets-run":
                    for stop in session.stops:
                        stop.set()
                    await asyncio.wait(session.running)
                return {}
            case _:
                return await self._prompt(id_, session, params.get("prompt"), bad)

    def _initialize(self, params: Any) -> Message:
        wanted = params.get("protocolVersion") if isinstance(params, dict) else None
        if type(wanted) is not int:
            raise Refused(-32602, "protocolVersion is a number")
        if self.version:
            raise Refused(-32600, "once is enough")
        self.version = min(max(wanted, 1), 2)
        info = {"name": "by-hand", "version": "1"}
        if self.version == 1 or self.defect == "version-1-shape":
            able = {"loadSession": True, "promptCapabilities": {"image": True}, "mcpCapabilities": {},
                    "sessionCapabilities": {name: {} for name in ("list", "delete", "resume", "close",
                                                                  "additionalDirectories")}}  # fmt: skip
            told: Message = {"agentInfo": info, "agentCapabilities": able, "authMethods": []}
        else:
            marker: Any = True if self.defect == "boolean-markers" else {}
            told = {"info": info, "capabilities": {"session": {"delete": marker, "prompt": {"image": marker}}}}
        return {"protocolVersion": wanted if self.defect == "echoes-version" else self.version, **told}

    def _new(self, params: Message, after: list[Message], bad: int) -> Message:
        if not isinstance(params.get("cwd"), str) or any(
            not isinstance(server, dict) or isinstance(server.get("env"), dict)
            for server in params.get("mcpServers", [])
        ):
            raise Refused(bad, "cwd is a path, and variables of tool servers are a list")
        session = Session(params["cwd"])
        session.directories = params.get("additionalDirectories") or []
        self.sessions[session.id] = session
        self.opened.add(session.id)
        news = self._update(session, {"sessionUpdate": "available_commands_update", "availableCommands": []})
        if self.defect == "early-update":
            self.emit(news)
        else:
            after.append(news)
        return {"sessionId": session.id, **self._setup(session)}

    def _setup(self, session: Session) -> Message:
        key = "configId" if self.version == 2 else "id"
        values = {"agent": AGENTS, "mood": ("calm", "grim")}
        told: Message = {"configOptions": [
            {key: name, "name": name, "type": "select", "currentValue": session.options[name],
             "options": [{"value": value, "name": value} for value in values[name]]}
            for name in values
        ]}  # fmt: skip
        if self.version == 1:
            modes = [{"id": agent, "name": agent} for agent in AGENTS]
            told["modes"] = {"currentModeId": session.options["agent"], "availableModes": modes}
        return told

    def _set(self, session: Session, name: Any, value: Any, bad: int) -> Message:
        if (name, value) not in [*(("agent", agent) for agent in AGENTS), ("mood", "calm"), ("mood", "grim")]:
            raise Refused(bad, "no such option")
        session.options[name] = value
        options = self._setup(session)["configOptions"]
        return {"configOptions": [o for o in options if name in o.values()] if self.defect == "one-option" else options}

    def _open(self, session: Session, method: str, params: Message, after: list[Message]) -> Message:
        self.opened.add(session.id)
        session.directories = params.get("additionalDirectories") or []
        start = params.get("replayFrom") == {"type": "start"} and self.version == 2
        if method == "session/load" or start or self.defect == "resume-replays":
            for update in session.said:
                told = self._update(session, update)
                if self.defect == "late-replay":
                    after.append(told)
                else:
                    self.emit(told)
        return self._setup(session)

    # -- turns -------------------------------------------------------------------------------------------------

    def _update(self, session: Session, update: Message) -> Message:
        return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session.id, "update": update}}

    def _say(self, session: Session, update: Message) -> None:
        if "chunk" in update["sessionUpdate"] or update["sessionUpdate"] == "user_message":
            session.said.append(update)
        self.emit(self._update(session, update))

    async def _prompt(self, id_: Any, session: Session, blocks: Any, bad: int) -> Message:
        if not isinstance(blocks, list) or not all(isinstance(block, dict) and _fits(block) for block in blocks):
            raise Refused(bad, "that is no content")
        if self.defect == "text-only" and any(block["type"] != "text" for block in blocks):
            raise Refused(bad, "only text")
        words = " ".join(block["text"] for block in blocks if block["type"] == "text")
        stop = asyncio.Event()
        session.stops.append(stop)
        self.prompts[id_] = stop
        message = f"user-{uuid.uuid4().hex}"
        if self.version == 1:
            session.said.append({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": words}})
        turn = asyncio.get_running_loop().create_task(self._turn(session, words, stop))
        session.running.add(turn)
        turn.add_done_callback(session.running.discard)
        if self.version == 2:
            told = asyncio.get_running_loop().create_task(self._tell(session, blocks, message, turn))
            self.tasks.add(told)
            told.add_done_callback(self.tasks.discard)
            if self.defect == "answers-at-the-end":
                await asyncio.wait({told})
            return {"messageId": message}
        ended = await turn
        if ended == "cancelled" and self.defect == "cancel-is-an-error":
            raise Refused(-32800, "cancelled")
        if isinstance(ended, Refused):
            if self.defect == "failure-is-a-stop":
                return {"stopReason": "error"}
            raise ended
        return {"stopReason": ended}

    async def _tell(self, session: Session, blocks: list[Message], message: str, turn: asyncio.Task[Any]) -> None:
        """Version 2: the turn by updates."""
        await asyncio.sleep(0)  # the answer goes first
        self._say(session, {"sessionUpdate": "user_message", "messageId": message, "content": blocks})
        self.emit(self._update(session, {"sessionUpdate": "state_update", "state": "running"}))
        ended = await turn
        stop = {"stopReason": "error", "error": ended.told} if isinstance(ended, Refused) else {"stopReason": ended}
        self.emit(self._update(session, {"sessionUpdate": "state_update", "state": "idle", **stop}))

    async def _turn(self, session: Session, words: str, stop: asyncio.Event) -> Any:
        """A stop reason, or why it failed."""
        if self.version == 2:
            await asyncio.sleep(0.01)  # after it is told that it runs
        try:
            async with session.turn:
                if stop.is_set():
                    return "cancelled"
                return await self._act(session, words, stop)
        finally:
            session.stops.remove(stop)

    async def _act(self, session: Session, words: str, stop: asyncio.Event) -> Any:
        made = uuid.uuid4().hex

        def chunk(text: str) -> Message:
            name = {"messageId": made} if self.version == 2 else {}
            return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, **name}

        match session.options["agent"]:
            case "slow":
                self._say(session, chunk("working "))
                await stop.wait()
                return "cancelled"
            case "broken":
                return Refused(-32603, "it cannot be done")
            case "careful":
                verdict = await self._ask(session, stop)
                if verdict is None:
                    return "cancelled"
                self._say(session, chunk("done" if verdict else "left alone"))
            case _:
                first, _, rest = words.partition(" ")
                self._say(session, chunk(first))
                if self.defect == "late-update" and self.version == 1:
                    asyncio.get_running_loop().call_later(0.02, self._say, session, chunk(" " + rest))
                else:
                    self._say(session, chunk(" " + rest))
        return "end_turn"

    async def _ask(self, session: Session, stop: asyncio.Event) -> bool | None:
        """Whether it may; None where that no longer matters."""
        id_ = uuid.uuid4().hex
        call = {"toolCallId": id_, "title": "Do it"}
        about: Message = {"toolCall": call}
        if self.version == 2:
            about = {"title": "Do it", "subject": {"type": "tool_call", "toolCall": call}}
            self.emit(self._update(session, {"sessionUpdate": "state_update", "state": "requires_action"}))
        self.emit(self._update(session, {"sessionUpdate": "tool_call" if self.version == 1 else "tool_call_update",
                                         **call}))  # fmt: skip
        answered = self.waiting[id_] = asyncio.get_running_loop().create_future()
        self.emit({"jsonrpc": "2.0", "id": id_, "method": "session/request_permission",
                   "params": {"sessionId": session.id, "options": OPTIONS, **about}})  # fmt: skip
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({answered, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if stop.is_set():
            return None
        told = answered.result().get("result")
        outcome = told.get("outcome") if isinstance(told, dict) else None
        outcome = outcome if isinstance(outcome, dict) else {}
        if self.defect == "any-option-approves":
            return outcome.get("optionId") != "no" and outcome.get("outcome") == "selected"
        return outcome.get("outcome") == "selected" and outcome.get("optionId") == "yes"


def _fits(block: Message) -> bool:
    kind = block.get("type")
    needs = {"text": ("text",), "image": ("data", "mimeType"), "resource_link": ("name", "uri")}
    return isinstance(kind, str) and all(isinstance(block.get(name), str) for name in needs.get(kind, ()))


def _is_response(message: Any) -> bool:
    return isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message)


def _no_constant(name: str) -> Any:
    raise ValueError(name)
