"""A server that answers with whatever comes to its mind, mostly in the form of an answer: `python garbage.py SEED`."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

WORDS = ("sessionId", "update", "sessionUpdate", "content", "text", "type", "configOptions", "modes", "options", "id",
         "availableModes", "currentValue", "sessions", "nextCursor", "toolCall", "toolCallId", "optionId", "kind",
         "stopReason", "state", "error", "code", "message", "agentInfo", "agentCapabilities", "loadSession", "list",
         "sessionCapabilities", "authMethods", "_meta", "steering", "info", "capabilities", "messageId", "title",
         "agent_message_chunk", "state_update", "idle", "tool_call", "config_option_update", "select", "s1",
         "session_info_update", "available_commands_update", "plan", "entries", "requestedSchema")  # fmt: skip
METHODS = (
    "session/update", "session/request_permission", "elicitation/create", "$/cancel_request", "fs/read_text_file",
)  # fmt: skip


def value(dice: random.Random, depth: int = 0) -> Any:
    plain = [None, True, False, 0, -1, 1e300, 2**70, "", "\ud800", "s1", *dice.sample(WORDS, 3)]
    if depth > 3 or dice.random() < 0.4:
        return dice.choice(plain)
    if dice.random() < 0.3:
        return [value(dice, depth + 1) for _ in range(dice.randrange(3))]
    return {word: value(dice, depth + 1) for word in dice.sample(WORDS, dice.randrange(8))}


def answer(dice: random.Random, request: dict[str, Any]) -> Any:
    told: Any = value(dice)
    if request.get("method") == "initialize" and dice.random() < 0.8:
        wanted = request.get("params", {}).get("protocolVersion")
        able = {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {}, "delete": {}, "close": {}}}
        told = {"protocolVersion": min(wanted, 2) if isinstance(wanted, int) else 1, "agentCapabilities": able,
                "info": value(dice), "capabilities": value(dice), "authMethods": value(dice)}  # fmt: skip
    elif request.get("method") == "session/new" and dice.random() < 0.8:
        told = {"sessionId": "s1", "configOptions": value(dice), "modes": value(dice)}
    kind = dice.choice(["result", "result", "result", "error"])
    return {"jsonrpc": "2.0", "id": request.get("id"), kind: told}


def line(dice: random.Random, request: dict[str, Any]) -> Any:
    match dice.randrange(12):
        case 0:
            return value(dice)
        case 1:
            return [answer(dice, request), value(dice)]
        case 2 | 3:
            inner = {"sessionId": "s1", "update": value(dice), "options": value(dice)}
            params = inner if dice.random() < 0.7 else value(dice)
            return {"jsonrpc": "2.0", "id": value(dice, 4), "method": dice.choice(METHODS), "params": params}
        case _:
            return answer(dice, request)


def main(seed: int) -> None:
    dice = random.Random(seed)
    for data in sys.stdin.buffer:
        try:
            request = json.loads(data)
        except ValueError:
            request = {}
        for one in request if isinstance(request, list) else [request]:
            if isinstance(one, dict):
                told = [line(dice, one) for _ in range(dice.randrange(3))]
                for frame in [*told, answer(dice, one)]:
                    sys.stdout.write(json.dumps(frame) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
