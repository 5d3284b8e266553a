"""A tool server without manners and without a library. The words of its command line say what it does."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HOW = sys.argv[1]
ANSWER = {"content": [{"type": "text", "text": "done"}]}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(id_: Any, result: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}))


def note(word: str) -> None:
    with Path(os.environ["CALLS_LOG"]).open("a") as file:
        file.write(f"{word}\n")


def modern(message: dict[str, Any]) -> None:
    """Only the revision without a handshake."""
    if message["method"] == "initialize":
        error = {"code": -32601, "message": "Method not found"}
        say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))
    elif message["method"] == "server/discover":
        answer(message["id"], {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                               "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})  # fmt: skip
    elif message["method"] == "tools/call":
        answer(message["id"], {**ANSWER, "resultType": "complete"})


def called(id_: Any, name: str) -> None:
    match name:
        case "huge":
            answer(id_, {"content": [{"type": "text", "text": "x" * 9_000_000}]})
        case "odd":
            answer(id_, {"content": "this is no list"})
        case "no message":
            say(json.dumps({"jsonrpc": "2.0", "id": id_, "result": ["no", "object"]}))
        case "deep":
            deep = "[" * 150 + "]" * 150
            result = f'{{"content": [], "structuredContent": {{"a": {deep}}}}}'
            say(f'{{"jsonrpc": "2.0", "id": {id_}, "result": {result}}}')
        case "flood":
            told = json.dumps({"jsonrpc": "2.0", "method": "notifications/message",
                               "params": {"level": "info", "data": "x" * 200}})  # fmt: skip
            for _ in range(20_000):
                sys.stdout.write(told + "\n")
            answer(id_, ANSWER)
        case "flood for ever":
            told = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}})
            while True:
                sys.stdout.write(told + "\n")
        case "silent":
            pass
        case _:
            answer(id_, ANSWER)


def main() -> None:
    note("start")
    if HOW == "stays":
        signal.signal(signal.SIGTERM, lambda *_: (note("end"), sys.exit()))
        while True:
            signal.pause()
    if HOW == "exit":
        print("no license found", file=sys.stderr)
        sys.exit(3)
    if HOW == "exit after start":
        line = json.loads(sys.stdin.readline())
        answer(line["id"], {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "rude", "version": "1"}})  # fmt: skip
        sys.stdin.readline()
        sys.stdin.readline()
        print("I do not work on Sundays", file=sys.stderr)
        sys.exit(1)
    if HOW == "garbage":
        say("Welcome!\x00\xff\n{half a message\n[1, 2\n" + "z" * 3_000_000)
        say('{"jsonrpc": "2.0"}')
        say('{"jsonrpc": "2.0", "id": 77, "result": {}}')
    if HOW == "endless line":
        piece = '{"jsonrpc":"2.0","result":"' + "x" * 1_000_000
        while True:
            sys.stdout.write(piece)
    for line in sys.stdin:
        if HOW == "silent":
            print("still thinking", file=sys.stderr, flush=True)
            continue
        message = json.loads(line)
        if HOW == "modern":
            modern(message)
        elif message.get("method") == "initialize":
            answer(message["id"], {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                                   "serverInfo": {"name": "rude", "version": "1"}})  # fmt: skip
        elif message.get("method") == "tools/list":
            answer(message["id"], {"tools": [], **({"nextCursor": "again"} if HOW == "endless list" else {})})
        elif message.get("method") == "tools/call":
            if HOW == "deaf":
                signal.pause()
            called(message["id"], message["params"]["name"])


main()
