"""An agent as others would write one: raw lines of JSON, no code of ours. Prompts are its script, one action per line.

    say TEXT            a piece of its message            update JSON    any session/update
    call METHOD JSON    asks the client, and says what     notify METHOD  sends a notification
                        it was answered                    raw TEXT       writes a line as it is
    wait                until the turn is cancelled       die            exits at once, with status 3
    stop REASON         ends the turn with a reason       fail JSON      ends it with an error
    late TEXT           says something after the answer   env NAME       says a variable
    seen                says what was asked of it so far  pid            says its process id
    later PATH          says after the answer what comes
                        out of a pipe
    hear PATH           says what comes out of a pipe     twice ...      a call that asks again before the first is
                                                                         answered, and says what the second was

The first argument is JSON that changes how it presents itself (see `main`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any


class Done(Exception):
    pass


class Agent:
    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.version = given.get("version", 1)
        self.lock = threading.Lock()
        self.answers: dict[Any, Any] = {}
        self.news = threading.Condition()
        self.cancelled: set[str] = set()
        self.seen: list[Any] = []
        self.next = 0
        self.sessions = 0
        self.state = Path(given["state"]) if "state" in given else None

    def write(self, message: Any) -> None:
        line = message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def update(self, session: str, update: dict[str, Any]) -> None:
        self.write({"method": "session/update", "params": {"sessionId": session, "update": update}})

    def say(self, session: str, text: str, **more: Any) -> None:
        extra = {"messageId": "m1", **more} if self.version == 2 else more
        content = {"type": "text", "text": text}
        self.update(session, {"sessionUpdate": "agent_message_chunk", "content": content, **extra})

    def ask(self, method: str, params: dict[str, Any], times: int = 1) -> Any:
        for _ in range(times):
            with self.news:
                self.next += 1
                id_ = f"a{self.next}"
            self.write({"id": id_, "method": method, "params": params})
        if times > 1:
            self.say(params["sessionId"], "asked twice ")
        with self.news:
            self.news.wait_for(lambda: id_ in self.answers)
            return self.answers[id_]

    # -- being asked --------------------------------------------------------------------------------------

    def take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            with self.news:
                self.answers[message.get("id")] = message.get("result", message.get("error"))
                self.news.notify_all()
            return
        self.seen.append([message["method"], message.get("params")])
        if message["method"] == "session/cancel":
            with self.news:
                self.cancelled.add(message["params"]["sessionId"])
                self.news.notify_all()
        elif "id" in message:
            threading.Thread(target=self.answer, args=(message,), daemon=True).start()

    def answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if method in self.given.get("holds", []):
            return
        errors = self.given.get("errors", {})
        if method in errors:
            self.write({"id": message["id"], "error": errors[method]})
            return
        handler = getattr(self, "on_" + method.replace("/", "_"), None)
        if handler is None:
            self.write({"id": message["id"], "error": {"code": -32601, "message": f"no {method}"}})
            return
        if method == "session/prompt":
            handler(message["id"], params)
            return
        result = handler(params)
        self.write({"id": message["id"], "result": result})
        # Those who never tell them (None) are waited for, for a moment.
        commands = self.given.get("commands", None if "early" in self.given else [])
        if method == "session/new" and commands is not None:
            told = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
            self.update(result["sessionId"], told)
        if method in ("session/load", "session/resume") and "after_load" in self.given:
            self.play(params["sessionId"], self.given["after_load"])

    def on_initialize(self, params: dict[str, Any]) -> Any:
        if "hang" in self.given:
            threading.Event().wait()
        info = {"name": "fake-agent", "version": "1.2.3", "title": "A fake agent"}
        if self.version == 2:
            answer = {"protocolVersion": 2, "info": info, "capabilities": {"session": {}}, "authMethods": []}
        else:
            able = {"loadSession": True, **self.given.get("able", {})}
            answer = {"protocolVersion": 1, "agentInfo": info, "agentCapabilities": able, "authMethods": []}
        return {**answer, **self.given.get("init", {})}

    def on_authenticate(self, params: dict[str, Any]) -> Any:
        self.given.get("errors", {}).pop("session/new", None)
        return {}

    def on_session_new(self, params: dict[str, Any]) -> Any:
        self.sessions += 1
        id_ = f"s{self.sessions}-{os.getpid()}"
        if self.given.get("early"):
            self.update(id_, {"sessionUpdate": "available_commands_update", "availableCommands": self.given["early"]})
        self.remember(id_, "new")
        return {"sessionId": id_, **self.given.get("new", {})}

    def on_session_load(self, params: dict[str, Any]) -> Any:
        id_ = params["sessionId"]
        for line in self.recall(id_):
            user = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": line}}
            self.update(id_, user)
            self.say(id_, "replayed")
        return self.given.get("new", {})

    def on_session_resume(self, params: dict[str, Any]) -> Any:
        return self.given.get("new", {})

    def on_session_close(self, params: dict[str, Any]) -> Any:
        return {}

    def on_session_set_mode(self, params: dict[str, Any]) -> Any:
        return {}

    def on_session_set_config_option(self, params: dict[str, Any]) -> Any:
        return {"configOptions": self.given["new"]["configOptions"]}

    # -- prompts ------------------------------------------------------------------------------------------

    def on_session_prompt(self, id_: Any, params: dict[str, Any]) -> None:
        session = params["sessionId"]
        self.cancelled.discard(session)
        text = next((block["text"] for block in params["prompt"] if block["type"] == "text"), "")
        self.remember(session, text)
        if self.version == 2:
            user = {"sessionUpdate": "user_message", "messageId": "u1", "content": params["prompt"]}
            self.write({"id": id_, "result": {"messageId": "u1"}})
            self.update(session, user)
            self.update(session, {"sessionUpdate": "state_update", "state": "running"})
        late = [line[5:] for line in text.splitlines() if line.startswith("late ")]
        result: dict[str, Any] = {"result": {"stopReason": "end_turn"}}
        try:
            self.play(session, text)
        except Done as done:
            result = done.args[0]
        if "ended" in self.given:
            result = {"result": self.given["ended"]}
        if self.version == 2:
            self.update(session, {"sessionUpdate": "state_update", "state": "idle", **result.get("result", {})})
        else:
            self.write({"id": id_, **result})
        for words in late:
            self.say(session, words)
        for line in text.splitlines():
            if line.startswith("later "):
                self.say(session, Path(line[6:]).read_text())

    def play(self, session: str, script: str) -> None:
        for line in script.splitlines():
            action, _, rest = line.partition(" ")
            match action:
                case "say":
                    self.say(session, rest)
                case "update":
                    self.update(session, json.loads(rest))
                case "call" | "twice":
                    method, _, params = rest.partition(" ")
                    times = 2 if action == "twice" else 1
                    told = self.ask(method, {"sessionId": session, **json.loads(params or "{}")}, times)
                    if session in self.cancelled:
                        self.say(session, json.dumps(told))
                        raise Done({"result": {"stopReason": "cancelled"}})
                    self.say(session, json.dumps(told))
                case "notify":
                    self.write({"method": rest, "params": {}})
                case "raw":
                    self.write(rest)
                case "wait":
                    with self.news:
                        self.news.wait_for(lambda: session in self.cancelled)
                    self.say(session, "last words")
                    raise Done({"result": {"stopReason": "cancelled"}})
                case "die":
                    os._exit(3)
                case "stop":
                    raise Done({"result": {"stopReason": rest}})
                case "fail":
                    raise Done({"error": json.loads(rest)})
                case "env":
                    self.say(session, os.environ.get(rest, "unset"))
                case "seen":
                    self.say(session, json.dumps(self.seen))
                case "hear":  # a pipe with a name: it waits until somebody has written there
                    self.say(session, Path(rest).read_text().strip())
                case "pid":
                    self.say(session, str(os.getpid()))

    # -- memory -------------------------------------------------------------------------------------------

    def remember(self, session: str, line: str) -> None:
        if self.state is not None:
            with self.state.open("a") as file:
                file.write(json.dumps([session, line]) + "\n")

    def recall(self, session: str) -> list[str]:
        if self.state is None or not self.state.exists():
            return []
        lines = [json.loads(line) for line in self.state.read_text().splitlines()]
        return [line for known, line in lines if known == session and line != "new"]


def main() -> None:
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if "pidfile" in given:
        with Path(given["pidfile"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if "stderr" in given:
        for number in range(given["stderr"]):
            sys.stderr.write(f"line {number} of the log {'x' * 1000}\n")
        sys.stderr.flush()
    agent = Agent(given)
    for line in given.get("noise", []):
        agent.write(line)
    if given.get("dead"):
        sys.stderr.write("no such model\n")
        sys.exit(4)
    for line in sys.stdin:
        if line.strip():
            message = json.loads(line)
            agent.seen.append(["version", message["jsonrpc"]]) if "jsonrpc" not in message else None
            agent.take(message)
    if given.get("deaf"):  # it does not end when its input does
        threading.Event().wait()
    os._exit(0)


if __name__ == "__main__":
    main()
