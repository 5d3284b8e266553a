"""A server of agents over MCP that was written by hand from the document, and breaks one rule where it is told to.

    python broken.py [DEFECT]

Nothing of our own package is imported here. It is one loop over lines: no agent of it needs to wait for anything but
for messages that come. What is a defect is said where it is made; `DEFECTS` in test_broken.py has all of them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

DEFECT = sys.argv[1] if len(sys.argv) > 1 else ""
PAGE = 3

Message = dict[str, Any]


def schema(**properties: Any) -> Message:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = schema(text={"type": "string"})
NUMBERS = {"type": "array", "items": {"type": "integer"}}
STORY = {
    "type": "object",
    "properties": {
        "text": {"type": "string"}, "total": {"type": "integer"}, "seen": {"type": ["array", "null"]},
        "late": {"type": ["array", "null"]},
        "words": {"type": "array", "items": {"type": "string"}}, "notes": {"type": "array"},
        "sure": {"type": "boolean"},
    },
    "required": ["text"],
}  # fmt: skip
AGENTS: dict[str, tuple[Message, Message, str]] = {
    "gpa": (TEXT, TEXT, "General purpose agent"),
    "story": (schema(numbers=NUMBERS), STORY, "Needs every rule of the delta algorithm"),
    "careful": (TEXT, TEXT, "Asks before it does anything"),
    "slow": (TEXT, TEXT, "Goes on until it is cancelled"),
    "broken": (TEXT, TEXT, "Always fails"),
}
TEMPLATES: dict[str, Message] = {"gpa": schema(tone={"type": "string"})}

asks = False  # whether the client can be asked
declares = False  # whether it declares agents, which it need not
made: dict[str, str] = {}  # agents, by the template that they were made from
waiting: dict[str, Any] = {}  # our questions: the request that waits for the answer
running: dict[Any, Any] = {}  # runs that have not ended, and their tokens
first_output: Message | None = None


class Failure(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(id_: Any, result: Any) -> None:
    if DEFECT == "id is a text":
        id_ = str(id_)
    if DEFECT == "no id":
        write(result=result)
    elif DEFECT == "error is null":
        write(id=id_, result=result, error=None)
    else:
        write(id=id_, result=result)


def fail(id_: Any, code: int, text: str) -> None:
    if DEFECT == "result is null":
        write(id=id_, result=None, error={"code": code, "message": text})
        return
    write(id=id_, error={"code": code, "message": text})


# -- MCP ------------------------------------------------------------------------------------------------------


def initialize(id_: Any, params: Message) -> Message:
    global asks, declares
    asks = "elicitation" in params["capabilities"]
    declares = "agents" in params["capabilities"]
    able: Message = {"agents": {"templates": True, "listChanged": True}}
    if DEFECT == "no capability":
        able = {"tools": {}}
    if DEFECT == "capability is true":
        able = {"agents": True}
    return {
        "protocolVersion": params["protocolVersion"], "capabilities": able,
        "serverInfo": {"name": "by hand", "version": "1"},
    }  # fmt: skip


def ping(id_: Any, params: Message) -> Message:
    if DEFECT == "no ping":
        raise Failure(-32601, "ping?")
    return {}


# -- listing --------------------------------------------------------------------------------------------------


def described(name: str) -> Message:
    inputs, outputs, text = AGENTS[made.get(name, name)]
    found = {"name": name, "description": text, "inputSchema": inputs, "outputSchema": outputs}
    if name == "broken":
        if DEFECT == "description is null":
            found["description"] = None
        if DEFECT == "no output schema":
            del found["outputSchema"]
        if DEFECT == "schema without a type":
            found["inputSchema"] = {"properties": TEXT["properties"]}
        if DEFECT == "schema is a text":
            found["inputSchema"] = json.dumps(TEXT)
        if DEFECT == "two of one name":
            found["name"] = "slow"
        if DEFECT == "required is a text":
            found["inputSchema"] = {**TEXT, "required": "text"}
    if name == "gpa" and DEFECT == "properties left out":
        found["outputSchema"] = {"type": "object"}
    return found


def list_agents(id_: Any, params: Message | None) -> Any:
    if DEFECT == "wants agents declared" and not declares:
        raise Failure(-32600, "the client has no agents capability")
    if DEFECT == "no empty params" and params == {}:
        raise Failure(-32602, "params is empty; leave it out")
    names = [*AGENTS, *made]
    start = int((params or {}).get("cursor", "0")) if DEFECT != "cursor ignored" else 0
    agents = [described(name) for name in names[start : start + PAGE]]
    if DEFECT == "shown names":
        agents = [{**agent, "name": agent["name"].title()} for agent in agents]
    if DEFECT == "a bare list":
        return agents
    if DEFECT == "listed as items":
        return {"items": agents}
    more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(names) else {}
    return {"agents": agents, **more}


def list_templates(id_: Any, params: Message) -> Message:
    return {"agentTemplates": [{**described(name), "configSchema": TEMPLATES[name]} for name in TEMPLATES]}


def create(id_: Any, params: Message) -> Message:
    name = f"{params['templateName']}-{params['config']['tone']}"
    made[name] = params["templateName"]
    changed()
    return {"agent": described(name)}


def destroy(id_: Any, params: Message) -> Message:
    if DEFECT != "never destroyed":
        del made[params["name"]]
    changed()
    return {}


def changed() -> None:
    if DEFECT != "no word of changes":
        write(method="notifications/agents/list_changed")


# -- running --------------------------------------------------------------------------------------------------


def run(id_: Any, params: Message) -> Message | None:
    global first_output
    name, input_ = params.get("name"), params.get("input")
    if not isinstance(name, str) or not isinstance(input_, dict):
        raise Failure(-32602, "name is a text, input an object")
    if DEFECT == "any name will do" and name not in AGENTS:
        name = "gpa"
    token = token_of(params)
    match made.get(name, name):
        case "gpa":
            output = gpa(input_, token)
        case "story":
            output = story(input_, token)
        case "careful":
            return careful(id_, input_)
        case "slow":
            running[id_] = token
            tell(token, {"text": "so "})
            return None
        case "broken":
            raise Failure(-32000, "it is broken")
        case _:
            raise Failure(-32602, f"no agent {name}")
    if DEFECT == "first output for all":
        output = first_output = first_output or output
    if DEFECT == "output is the result":
        return output
    if DEFECT == "output is a text":
        return {"output": json.dumps(output)}
    if DEFECT == "another output" and name == "gpa":
        return {"output": {"text": ["Howdy"]}}
    return {"output": output}


def token_of(params: Message) -> Any:
    """The token that progress is told under; None where there is none."""
    token = params.get("_meta", {}).get("progressToken")
    if DEFECT == "token beside the input":
        token = params.get("progressToken", token)
    if DEFECT == "falsy tokens" and not token:
        return None
    return "nobody gave one" if DEFECT == "progress without a token" and token is None else token


def gpa(input_: Message, token: Any) -> Message:
    words = [word + " " for word in input_["text"].split()]
    text = "".join(words)
    if DEFECT == "text so far":
        words = ["".join(words[: n + 1]) for n in range(len(words))]
    if DEFECT == "out of order":
        words.reverse()
    if DEFECT == "words lost":
        words = words[:1]
    for word in words:
        tell(token, {"chunk": word} if DEFECT == "chunks" else {"text": word})
    return {"text": text}


def story(input_: Message, token: Any) -> Message:
    """What it tells needs each rule at least once."""
    numbers = input_["numbers"]
    total = sum(numbers) + 5
    begin = {"text": "Once ", "total": sum(numbers), "seen": [None, 1], "notes": [], "late": None, "sure": True}
    tell(token, begin)
    more: Message = {"total": 5, "seen": [None, 2], "notes": [None, "a", "b"], "late": [None, "z"], "sure": True}
    if DEFECT == "totals":
        more["total"] = total
    if DEFECT == "arrays without a marker":
        more["seen"] = [2]
    if DEFECT == "another type":
        more["text"] = 7
    tell(token, more)
    tell(token, {"text": "upon", "notes": ["c", "d"], "words": ["x"], "late": [], "seen": None})
    output: Message = {
        "text": "Once upon", "total": total, "seen": [1, 2], "notes": ["a", "bc", "d"], "late": ["z"], "words": ["x"],
        "sure": True,
    }  # fmt: skip
    if DEFECT == "null resets":
        output["seen"] = None
    if DEFECT == "markers kept":
        output["seen"] = [None, 1, 2]
    if DEFECT == "last object":
        output = {"text": "upon", "notes": ["c", "d"], "words": ["x"], "late": []}
    return output


def tell(token: Any, delta: Any) -> None:
    if token is None:
        return
    method = "notifications/agents/run/progress"
    if DEFECT == "usual progress":
        method = "notifications/progress"
    if DEFECT == "token is a text":
        token = str(token)
    if DEFECT == "tokens mixed up":
        token = {"left hand": "right hand", "right hand": "left hand"}.get(token, token)
    if DEFECT == "delta is a text":
        delta = delta.get("text")
    params = {"progressToken": token, "delta": delta}
    if DEFECT == "progress late":
        held.append(params)
    elif DEFECT == "progress with an id":
        write(method=method, id=7_000_000, params=params)
    else:
        write(method=method, params=params)


held: list[Message] = []  # progress that should have been told before


def careful(id_: Any, input_: Message) -> None:
    if not asks:
        raise Failure(-32000, "nobody can be asked")
    key = f"question {len(waiting)}"
    waiting[key] = id_
    form: Message = schema(sure={"type": "boolean"})
    if DEFECT == "nested form":
        form = schema(answer=schema(sure={"type": "boolean"}))
    if DEFECT == "question without words":
        write(method="elicitation/create", id=key, params={"requestedSchema": form})
    else:
        write(method="elicitation/create", id=key, params={"message": f"Do {input_['text']}?", "requestedSchema": form})


def answered(message: Message) -> None:
    """The answer to a question of ours."""
    id_ = waiting.pop(message.get("id", ""), None)
    if id_ is not None:
        result = message.get("result") or {}
        sure = result.get("action") == "accept" and (result.get("content") or {}).get("sure") is True
        answer(id_, {"output": {"text": "done" if sure else "left alone"}})


def cancelled(params: Message) -> None:
    if DEFECT.startswith("cancels ignored"):
        return
    token = running.pop(params.get("requestId"), None)
    if DEFECT == "cancelled and answered":
        fail(params.get("requestId"), 0, "Request cancelled")
    elif DEFECT == "cancelled and done":
        answer(params.get("requestId"), {"output": {"text": "so it is"}})
    elif DEFECT == "cancelled, but told":
        late.append(token)


late: list[Any] = []  # tokens of runs that should have ended

METHODS = {
    "initialize": initialize, "ping": ping, "agents/list": list_agents, "agents/run": run,
    "agents/templates/list": list_templates, "agents/create": create, "agents/destroy": destroy,
}  # fmt: skip


# -- lines ----------------------------------------------------------------------------------------------------


def take(message: Any) -> None:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        fail(None, -32600, "that is no message")
        return
    method, params = message.get("method"), message.get("params")
    if method is None:
        answered(message)
    elif "id" not in message:
        if method == "notifications/cancelled":
            cancelled(params or {})
        elif DEFECT == "answers notifications":
            fail(None, -32601, f"no {method}")
    else:
        request(message["id"], method, params)


def request(id_: Any, method: str, params: Any) -> None:
    work = METHODS.get(method)
    if work is None:
        if DEFECT == "ends at an unknown method":
            sys.exit(1)
        if DEFECT != "silent at an unknown method":
            fail(id_, -32602 if DEFECT == "another code" else -32601, f"no {method}")
        return
    if params is not None and not isinstance(params, dict):
        fail(id_, -32602, "params is an object")
        return
    try:
        result = work(id_, params)  # type: ignore[operator]
    except Failure as failure:
        fail(id_, failure.code, str(failure))
        return
    if result is not None:
        answer(id_, GARBAGE[DEFECT] if DEFECT in GARBAGE and method.startswith("agents/") else result)
    while held and method == "agents/run":
        write(method="notifications/agents/run/progress", params=held.pop(0))
    if method == "ping" and DEFECT != "cancels ignored in silence":
        for token in (*running.values(), *late):
            tell(token, {"text": "on and on "})


GARBAGE: dict[str, Any] = {
    "results are null": None, "results are numbers": 5, "results are texts": "so", "results are empty": {},
    "results are odd": {
        "agents": [5, None, {"name": ["x"], "inputSchema": 7}, {"name": "gpa", "inputSchema": {"properties": 5}}],
        "output": [{"output": None}], "nextCursor": 7,
    },
    "results are deep": {
        "agents": [{"name": "gpa", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#"}}}}],
    },
}  # fmt: skip


def main() -> None:
    if DEFECT == "says hello":
        print("listening on stdin", flush=True)
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
        except ValueError:
            if DEFECT == "ends at bad JSON":
                raise
            fail(None, -32700, "that is no JSON")
            continue
        take(message)


if __name__ == "__main__":
    main()
