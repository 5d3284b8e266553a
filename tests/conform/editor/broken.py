"""A server that breaks one rule on purpose: that of `by_hand.py`, over stdin and stdout.

`python broken.py` keeps all of them; `python broken.py DEFECT` breaks one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from by_hand import Connection

DEFECTS = {
    "echoes-version": "answers any protocolVersion with itself",
    "version-1-shape": "answers version 2 in the words of version 1",
    "boolean-markers": "has true for markers in version 2",
    "answers-at-the-end": "answers a prompt of version 2 when its turn is over",
    "error-is-null": "answers with an error that is null beside the result",
    "banner": "prints a line to stdout before it speaks",
    "empty-array": "answers a batch of notifications with an empty array",
    "whole-batch-fails": "answers a batch with an invalid entry with one error for all of it",
    "no-array": "answers each entry of a batch by itself",
    "early-array": "sends the array before the slowest entry is done",
    "no-id": "leaves the id out of an error for nobody",
    "answers-notifications": "answers a notification that it does not know",
    "answers-responses": "answers a response that it did not wait for",
    "rounds-ids": "keeps ids in floating point",
    "splits-lines": "ends lines at every line separator of Unicode",
    "short-lines": "cannot read a line above 64 KiB",
    "outlives-input": "goes on when its input has ended",
    "before-initialize": "opens sessions before initialize",
    "invalid-params": "answers params that do not fit with an internal error",
    "late-update": "says the last word after the answer to the prompt",
    "early-update": "speaks of a session before session/new is answered",
    "text-only": "takes no content but text",
    "cancel-is-an-error": "answers a cancelled prompt with an error",
    "failure-is-a-stop": "answers a prompt that failed with a stop reason",
    "any-option-approves": "takes any answer to a permission request but a rejection for an approval",
    "one-option": "tells only the option that was set",
    "late-replay": "replays a session after session/load is answered",
    "resume-replays": "replays a session that is resumed",
    "close-lets-run": "answers session/close while the turn runs",
}


def _write(frame: Any) -> None:
    data = json.dumps(frame, ensure_ascii=False).encode(errors="replace") + b"\n"
    while data:
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:
            select.select([], [1], [])
        except OSError:
            os._exit(0)


def _read(heard: Callable[[bytes | None], None], defect: str | None) -> None:
    """Lines as they come; None at the end."""
    kept = bytearray()
    while True:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            select.select([0], [], [])
            continue
        if not data:
            break
        kept += data
        if b"\n" not in data:
            if defect == "short-lines" and len(kept) > 65536:
                os._exit(1)
            continue
        *lines, rest = bytes(kept).split(b"\n")
        kept = bytearray(rest)
        for line in lines:
            if defect == "short-lines" and len(line) > 65536:
                os._exit(1)
            text = line.decode(errors="surrogateescape")
            for part in text.splitlines() if defect == "splits-lines" else [text]:
                heard(part.encode(errors="surrogateescape"))
    if defect != "outlives-input":
        heard(None)


async def main(defect: str | None) -> None:
    if defect == "banner":
        os.write(1, b"Welcome!\n")
    connection = Connection(_write, {}, defect)
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def heard(line: bytes | None) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=_read, args=(heard, defect), daemon=True).start()
    while (line := await lines.get()) is not None:
        if line.strip():
            connection.frame(line)
            await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # for what is nearly answered
    os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
