"""A small server of CAP, written by hand: it keeps the document, or breaks the one rule that a defect names.

Its agents play from scripts: `pm-1` the document's example with two instances of a helper, `asks`, `sleeps` and `fails`
what their names say. It is served over HTTP, or as a program that reads and writes lines (`python -m … [DEFECT]`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..connect.broken import listening

Json = dict[str, Any]
US = ("user", "orchestrator")
TEXTS = {
    "message": "content", "delegation_notice": "context_summary", "error_response": "error_message",
    "oversight_inquiry": "inquiry",
}  # fmt: skip
SPEC = {"type": "tool_call_result", "server_id": "DocsServer", "tool": "read_file", "result": "…project spec…"}


def manifest(id_: str, *allowed: str, overseer: str | None = None, bindings: tuple[Json, ...] = ()) -> Json:
    return {
        "id": id_, "system_prompt": f"You are {id_}.", "allowed_agents": list(allowed), "overseer": overseer,
        "delegate_rules": {one: {"when_to_delegate": f"When it takes {one}."} for one in allowed},
        "mcp_bindings": list(bindings),
    }  # fmt: skip


DOCS = {
    "server_id": "DocsServer", "description": "Specifications.", "scopes": ["read:docs"],
    "allowed_tools": ["list_documents", "read_file"],
}  # fmt: skip
MANIFESTS = [
    manifest("pm-1", "analyst-1", "helper", bindings=(DOCS,)),
    manifest("analyst-1", "qa-1", overseer="qa-1"),
    *(manifest(name) for name in ("qa-1", "helper", "asks", "sleeps")),
    manifest("fails", "helper"),
]


class Refused(Exception):
    def __init__(self, code: int, why: str) -> None:
        self.code = code
        super().__init__(why)


class Task:
    def __init__(self, name: str) -> None:
        self.name = name
        self.said: list[Json] = []
        self.script: Iterator[None] = iter(())
        self.status = "running"


class Server:
    def __init__(self, defect: str | None = None, spoil: Callable[[Json], None] | None = None) -> None:
        self.defect = defect
        self.spoil = spoil or (lambda told: None)
        self.tasks: dict[str, Task] = {}
        self.failures = 0
        self.runs: dict[str, Any] = {}  # none that would have to be closed
        self.app = Starlette(
            routes=[
                Route("/messages", self.post, methods=["POST"]),
                Route("/agents", self.agents),
                Route("/tasks/{task}", self.task),
                Route("/tasks/{task}/cancel", self.cancel, methods=["POST"]),
            ]
        )

    # -- what is said -------------------------------------------------------------------------------------

    def message(self, kind: str, task: str, sender: str, recipient: str, text: str, **more: Any) -> Json:
        told = {
            "type": kind, "task_id": task, "sender_id": sender, "recipient_id": recipient, TEXTS[kind]: text, **more,
        }  # fmt: skip
        if self.defect != "no-timestamp":
            told["timestamp"] = datetime.now(UTC).isoformat()
        return told

    def error(self, code: int, task: str, sender: str, recipient: str, text: str) -> Json:
        given: Any = str(code) if self.defect == "text-code" else code
        return self.message("error_response", task, sender, recipient, text, error_code=given)

    def take(self, given: Json) -> None:
        """What somebody outside says."""
        kind, name, sender, to = (given.get(key) for key in ("type", "task_id", "sender_id", "recipient_id"))
        if self.defect == "wants-attachments" and "attachments" not in given:
            raise Refused(400, "attachments are missing")
        if self.defect == "users-only" and sender != "user":
            raise Refused(403, "tasks are begun by users")
        if kind == "error_response":
            return
        if sender not in US and self.defect != "anyone-delegates":
            allowed = next((one["allowed_agents"] for one in MANIFESTS if one["id"] == sender), [])
            if kind == "delegation_notice" and to not in allowed:
                raise Refused(403, f"{sender} may not delegate to {to}")
        if to not in [one["id"] for one in MANIFESTS]:
            raise Refused(404, f"there is no agent {to}")
        assert isinstance(name, str)
        if kind == "delegation_notice":
            task = self.tasks[name] = Task(name)
            task.said.append(self.noted(given))
            play = getattr(self, str(to).replace("-", "_"), self.works)
            task.script = play(task, to, sender)
        elif name not in self.tasks:
            if self.defect != "message-begins":
                raise Refused(404, f"there is no task {name}")
            self.tasks[name] = task = Task(name)
            task.said.append(self.message("delegation_notice", name, "orchestrator", str(to), given["content"]))
        else:
            task = self.tasks[name]
            if self.defect == "busy" and to == "sleeps":
                raise Refused(409, "it is working")
            task.said.append(self.noted(given))
        next(task.script, None)

    def noted(self, given: Json) -> Json:
        told = {**copy.deepcopy(given)}
        if self.defect != "no-timestamp":
            told["timestamp"] = datetime.now(UTC).isoformat()
        if told["type"] == "delegation_notice":
            if self.defect == "forgets-sender":
                del told["sender_id"]
            if self.defect == "forgets-summary":
                told["context_summary"] = "a task"
            if self.defect == "forgets-attachments":
                told["attachments"] = []
        return told

    # -- what agents do: a step of a script for every message that comes ----------------------------------

    def works(self, task: Task, agent: str, back: str) -> Iterator[None]:
        task.said.append(self.message("message", task.name, agent, back, "Done."))
        task.status = "succeeded"
        yield

    def sleeps(self, task: Task, agent: str, back: str) -> Iterator[None]:
        while True:
            yield

    def asks(self, task: Task, agent: str, back: str) -> Iterator[None]:
        question = self.message("message", task.name, agent, "user", "Shall I?")
        if self.defect == "own-type":
            question["type"] = "question"
        task.said.append(question)
        yield
        yield from self.works(task, agent, back)

    def fails(self, task: Task, agent: str, back: str) -> Iterator[None]:
        part = f"{task.name}.1"
        summary = "  " if self.defect == "blank-summary" else "I cannot do it; you do it."
        task.said.append(self.message("delegation_notice", part, agent, "helper", summary, attachments=[]))
        code = 500 if self.defect == "timeout-500" else 504
        task.said.append(self.error(code, part, "helper", agent, "MCP timeout."))
        self.failures += 1
        if self.defect in ("says-sorry", "timeout-as-text"):
            sorry = "Sorry: it failed." if self.defect == "says-sorry" else "Sorry, it timed out."
            task.said.append(self.message("message", task.name, agent, back, sorry))
        else:
            number = 500 + self.failures if self.defect == "random-code" else 502
            task.said.append(self.error(number, task.name, agent, back, "It cannot be done."))
        task.status = "failed"
        yield

    def pm_1(self, task: Task, agent: str, back: str) -> Iterator[None]:
        def say(kind: str, part: str, sender: str, to: str, text: str, *attached: Json) -> None:
            told = self.message(kind, task.name + part, sender, to, text, attachments=copy.deepcopy(list(attached)))
            if self.defect == "unworded-inquiry" and kind == "oversight_inquiry":
                told["question"] = told.pop("inquiry")
            if self.defect == "own-verdicts" and text == "Verified.":
                told["type"] = "approval"
            task.said.append(told)

        spec = {**SPEC, "tool": "delete_file"} if self.defect == "unbound-tool" else dict(SPEC)
        if self.defect == "reference":
            spec["ref"] = f"results/{len(str(spec.pop('result')))}"
        say("message", "", agent, "user", "By region, or as a whole?", SPEC)
        yield
        if self.defect != "unannounced":
            say("delegation_notice", ".1", agent, "analyst-1", "Analyse it by region.", spec)
        say("message", ".1", "analyst-1", agent, "Shall I look further?")
        say("message", ".1", agent, "analyst-1", "Yes, please.")
        self.review(say)
        if self.defect == "oversteps":
            say("delegation_notice", ".4", agent, "qa-1", "Have a look.")
        self.side_by_side(say)
        to = {"result-to-user": "user", "result-to-client": "client"}.get(str(self.defect), back)
        say("message", "", agent, to, "Here is the verified report.")
        task.status = "succeeded"
        yield

    def review(self, say: Any) -> None:
        report = {"type": "file", "path": "/srv/report.md"}
        if self.defect == "unseen":
            say("message", ".1", "analyst-1", "pm-1", "Here it is.")
            return
        say("delegation_notice", ".1.1", "analyst-1", "qa-1", "Please verify it.", report)
        if self.defect == "unapproved":
            say("message", ".1", "analyst-1", "pm-1", "Here it is.")
            return
        say("oversight_inquiry", ".1.1", "qa-1", "analyst-1", "Where are these numbers from?", report)
        say("message", ".1.1", "analyst-1", "qa-1", "From the clean table.")
        say("message", ".1.1", "qa-1", "pm-1", "Verified.")

    def side_by_side(self, say: Any) -> None:
        ids = ("helper#1", "helper#1" if self.defect == "same-id" else "helper#2")
        parts = (".2", ".b" if self.defect == "lettered" else ".3")
        for id_, part in zip(ids, parts, strict=True):
            say("delegation_notice", part, "pm-1", id_, f"Half of it: {part}.")
        if self.defect == "shared-context":
            say("message", parts[0], ids[1], "pm-1", "I can tell you that, too.")
        for id_, part in zip(ids, parts, strict=True):
            say("message", part, id_, "pm-1", "Done.")

    # -- over HTTP ----------------------------------------------------------------------------------------

    async def post(self, request: Request) -> Response:
        given = await request.json()
        try:
            self.take(given)
        except Refused as error:
            if self.defect == "own-errors":
                return JSONResponse({"detail": str(error)}, error.code)
            told = self.error(error.code, given["task_id"], "orchestrator", given["sender_id"], str(error))
            return JSONResponse(told, error.code)
        return JSONResponse({"ok": True}, 202)

    async def agents(self, request: Request) -> Response:
        told = copy.deepcopy(MANIFESTS)
        match self.defect:
            case "no-rules":
                del told[0]["delegate_rules"]
            case "rules-as-text":
                told[0]["delegate_rules"] = {"analyst-1": "When it takes numbers."}
            case "rules-without-condition":
                told[0]["delegate_rules"]["analyst-1"] = {"when": "it takes numbers"}
            case "rule-for-stranger":
                told[0]["delegate_rules"]["writer-1"] = {"when_to_delegate": "When it takes words."}
            case "same-agent-twice":
                told.append(manifest("asks"))
            case "scopes-as-text":
                told[0]["mcp_bindings"][0]["scopes"] = "read:docs"
            case "no-tools":
                del told[0]["mcp_bindings"][0]["allowed_tools"]
            case "overseer-as-list":
                told[1]["overseer"] = ["qa-1"]
            case "names-only":
                told.append("writer-1")  # type: ignore[arg-type]
        for one in told:
            self.spoil(one)
        return JSONResponse({"agents": told})

    async def task(self, request: Request) -> Response:
        task = self.tasks.get(request.path_params["task"])
        if task is None:
            return JSONResponse({"detail": "no such task"}, 404)
        said = copy.deepcopy(task.said)
        for told in said:
            self.spoil(told)
        return JSONResponse({"task_id": task.name, "status": task.status, "conversation": said})

    async def cancel(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    # -- over lines ---------------------------------------------------------------------------------------

    def lines(self) -> None:
        for line in sys.stdin:
            given = json.loads(line)
            before = {name: len(task.said) for name, task in self.tasks.items()}
            try:
                self.take(given)
            except Refused as error:
                told = self.error(error.code, given["task_id"], "orchestrator", given["sender_id"], str(error))
                print(json.dumps(told), flush=True)
            for name, task in self.tasks.items():
                for told in task.said[before.get(name, 0) :]:
                    if told["sender_id"] not in US and told["recipient_id"] in (*US, "client"):
                        print(json.dumps(told), flush=True)


@contextlib.asynccontextmanager
async def serving(defect: str | None = None, spoil: Callable[[Json], None] | None = None) -> AsyncIterator[str]:
    """`spoil` is given everything that is shown, to make something else of it."""
    server = Server(defect, spoil)
    async with listening(server, server.app) as address:  # type: ignore[arg-type]
        yield address


if __name__ == "__main__":
    Server(sys.argv[1] if len(sys.argv) > 1 else None).lines()
