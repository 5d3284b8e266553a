"""A server of agents over MCP that does what it is told, one JSON line at a time. Knows nothing of our code.

python mcp_server.py OPTIONS, where OPTIONS is JSON: see `Server`. The input is a script, one line for each act.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

Message = dict[str, Any]

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


class Server:
    """What one client is told, whatever carries it. `send` writes one message."""

    def __init__(self, given: Message, send: Any) -> None:
        self.version = given.get("version", "2025-11-25")
        self.capabilities = given.get("capabilities", {"agents": {}})
        self.agents = given.get("agents", [{"name": "script", "inputSchema": TEXT, "outputSchema": TEXT}])
        self.templates = given.get("templates", [])
        self.tools: list[Message] | None = given.get("tools")  # their `acts` are what a call does
        self.prompts: list[Message] | None = given.get("prompts")
        self.cannot: str | None = given.get("cannot")  # why it makes no agent of any
        self.made: list[str] = []  # agents that were made from them
        self.late: Message | None = given.get("late")  # an agent that comes right behind the first list
        self.page = given.get("page", 1000)
        self.refuses: Message | None = given.get("refuses")  # the error that initialize is answered with
        self.strict = given.get("strict", False)  # ends at a method that it does not know, as acp-sdk 0.0.6 does
        self.info = {"name": given.get("name", "fake"), "version": "1"}
        self.log = Path(given["log"]) if "log" in given else None
        self.send = send
        self.answers: dict[Any, Message] = {}
        self.news = threading.Condition()
        self.cancelled: set[Any] = set()
        self.looks: list[str] = []  # the methods with which it was asked whether it is there
        self.asked = itertools.count(1)
        self.lock = threading.Lock()

    def take(self, message: Message) -> None:
        if self.log is not None:
            with self.lock, self.log.open("a") as file:
                file.write(json.dumps(message) + "\n")
        method, id_ = message.get("method"), message.get("id")
        if method is None:
            with self.news:
                self.answers[id_] = message
                self.news.notify_all()
        elif method == "notifications/cancelled":
            with self.news:
                self.cancelled.add(message["params"]["requestId"])
                self.news.notify_all()
        elif id_ is not None:
            self.called(id_, method, message.get("params") or {})

    def called(self, id_: Any, method: str, params: Message) -> None:
        if method in ("ping", "server/discover"):
            with self.news:
                self.looks.append(method)
                self.news.notify_all()
        if method == "initialize" and self.refuses is None:
            told = {"protocolVersion": self.version, "capabilities": self.capabilities, "serverInfo": self.info}
            self.result(id_, told)
        elif method == "initialize":
            self.error(id_, self.refuses or {})
        elif method == "server/discover" and self.version == "2026-07-28":
            told = {"supportedVersions": [self.version], "capabilities": self.capabilities, "serverInfo": self.info}
            self.result(id_, told)
        elif method == "agents/list":
            start = int(params.get("cursor", 0))
            page: Message = {"agents": self.agents[start : start + self.page]}
            if start + self.page < len(self.agents):
                page["nextCursor"] = str(start + self.page)
            if self.late is None:
                self.result(id_, page)
            else:  # the list is old before it is read
                self.agents, self.late = [*self.agents, self.late], None
                changed = {"jsonrpc": "2.0", "method": "notifications/agents/list_changed"}
                self.send({"jsonrpc": "2.0", "id": id_, "result": page}, changed)
        elif method == "tools/list" and self.tools is not None:
            self.result(id_, {"tools": [{name: tool[name] for name in tool if name != "acts"} for tool in self.tools]})
        elif method == "prompts/list" and self.prompts is not None:
            self.result(id_, {"prompts": self.prompts})
        elif method == "tools/call" and self.tools is not None:
            acts = next(tool["acts"] for tool in self.tools if tool["name"] == params["name"])
            threading.Thread(target=self.act, args=(id_, params, acts), daemon=True).start()
        elif method == "prompts/get" and self.prompts is not None:
            text = {"type": "text", "text": json.dumps(params["arguments"])}
            self.result(id_, {"messages": [{"role": "user", "content": text}]})
        elif method == "agents/templates/list" and self.templates:
            self.result(id_, {"agentTemplates": self.templates})
        elif method == "agents/create" and self.cannot is not None:
            self.error(id_, {"code": 0, "message": self.cannot})
        elif method == "agents/create" and self.templates:
            name = f"made-{len(self.made) + 1}"
            self.made.append(name)
            self.result(id_, {"agent": {"name": name, "inputSchema": TEXT, "outputSchema": TEXT}})
        elif method == "agents/destroy" and params["name"] in self.made:
            self.result(id_, {})
        elif method == "agents/run":
            threading.Thread(target=self.run, args=(id_, params), daemon=True).start()
        elif self.strict:
            os._exit(7)
        else:
            self.error(id_, {"code": -32601, "message": f"no {method}"})

    def result(self, id_: Any, result: Message) -> None:
        self.send({"jsonrpc": "2.0", "id": id_, "result": result})

    def error(self, id_: Any, error: Message) -> None:
        self.send({"jsonrpc": "2.0", "id": id_, "error": error})

    def progress(self, params: Message, delta: Any) -> None:
        told = {"progressToken": params["_meta"]["progressToken"], "delta": delta}
        self.send({"jsonrpc": "2.0", "method": "notifications/agents/run/progress", "params": told})

    # -- scripts ------------------------------------------------------------------------------------------

    def run(self, id_: Any, params: Message) -> None:
        for line in str(params["input"].get("text", "")).splitlines():
            word, _, rest = line.partition(" ")
            getattr(self, f"do_{word}")(id_, params, json.loads(rest) if rest else None)

    def act(self, id_: Any, params: Message, acts: list[list[Any]]) -> None:
        for word, value in acts:
            getattr(self, f"do_{word}")(id_, params, value)

    def do_delta(self, id_: Any, params: Message, delta: Any) -> None:
        self.progress(params, delta)

    def do_said(self, id_: Any, params: Message, told: Message) -> None:
        told = {"progressToken": params["_meta"]["progressToken"], "progress": 1, **told}
        self.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})

    def do_flood(self, id_: Any, params: Message, count: int) -> None:
        for n in range(count):
            self.progress(params, {"text": f"{n},"})
        self.result(id_, {"output": {"text": "".join(f"{n}," for n in range(count))}})

    def do_output(self, id_: Any, params: Message, output: Any) -> None:
        self.result(id_, {"output": output})

    def do_long(self, id_: Any, params: Message, size: int) -> None:
        self.result(id_, {"output": {"text": "x" * size}})

    def do_result(self, id_: Any, params: Message, result: Any) -> None:
        self.result(id_, result)

    def do_error(self, id_: Any, params: Message, error: Any) -> None:
        self.error(id_, error)

    def do_together(self, id_: Any, params: Message, told: Message) -> None:
        """The answer, and deltas behind it, so close that they are read at once."""
        token = params["_meta"]["progressToken"]
        late = {"progressToken": token, "delta": told["late"]}
        answer = {"jsonrpc": "2.0", "id": id_, "result": {"output": told["output"]}}
        behind = {"jsonrpc": "2.0", "method": "notifications/agents/run/progress", "params": late}
        self.send(answer, behind)

    def do_elicit(self, id_: Any, params: Message, asks: Message) -> None:
        mine = f"ask-{next(self.asked)}"
        if asks.pop("names_run", False):
            asks["_meta"] = {"interlingua/progressToken": params["_meta"]["progressToken"]}
        self.send({"jsonrpc": "2.0", "id": mine, "method": "elicitation/create", "params": asks})
        with self.news:
            self.news.wait_for(lambda: mine in self.answers)
        self.result(id_, {"output": {"text": json.dumps(self.answers[mine].get("result"))}})

    def do_input(self, id_: Any, params: Message, asks: Message) -> None:
        """As in the revision without requests of the server's."""
        if "inputResponses" not in params:
            requests = {"q": {"method": "elicitation/create", "params": asks}}
            self.result(id_, {"resultType": "input_required", "inputRequests": requests, "requestState": "kept"})
            return
        assert params["requestState"] == "kept"
        self.result(id_, {"resultType": "complete", "output": {"text": json.dumps(params["inputResponses"])}})

    def do_until_cancelled(self, id_: Any, params: Message, error: Message) -> None:
        with self.news:
            self.news.wait_for(lambda: id_ in self.cancelled)
        self.error(id_, error)

    def do_until_looked_at(self, id_: Any, params: Message, told: Message) -> None:
        """Says nothing before it was asked so often whether it is there."""
        with self.news:
            much = len(self.looks) + told["times"]
            self.news.wait_for(lambda: len(self.looks) >= much)
        self.result(id_, {"output": told["output"]})

    def do_hang(self, id_: Any, params: Message, _: Any) -> None:
        threading.Event().wait()

    def do_noise(self, id_: Any, params: Message, text: str) -> None:
        print(text, flush=True)

    def do_agents(self, id_: Any, params: Message, agents: list[Message]) -> None:
        self.agents = agents
        self.send({"jsonrpc": "2.0", "method": "notifications/agents/list_changed"})

    def do_break(self, id_: Any, params: Message, _: Any) -> None:
        """Over HTTP: the stream ends here, and what comes then is there for those who take it up again."""
        self.send({"break": True})

    def do_die(self, id_: Any, params: Message, _: Any) -> None:
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)


def main() -> None:
    lock = threading.Lock()

    def send(*messages: Message) -> None:
        with lock:
            sys.stdout.write("".join(json.dumps(message) + "\n" for message in messages))
            sys.stdout.flush()

    server = Server(json.loads(sys.argv[1]), send)
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
