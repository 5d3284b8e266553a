"""The parts of the demo about runs: a question that is asked in one protocol and answered in another, and a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CommandError
from .tour import Wire, command, prompt, say, show, show_json
from .tour_doors import mcp_headers, mcp_run

if TYPE_CHECKING:
    from ..app.demo import Process

_MAIL = "org.agntcy.mailcomposer"
_TO = 8


async def asked_and_answered(wire: Wire, store: Path) -> None:
    """Asked over MCP, seen on the command line, answered over Connect."""
    from ..store.base import QuestionFilter
    from . import inbox, tables
    from .session import engine_at, interactive

    say(
        "3  asked in one protocol, answered in another",
        "This agent asks before it sends a mail. An MCP client calls it, which cannot be asked anything:",
    )
    mail = {"message": "To: ada@example.org. Subject: Lunch. At noon?"}
    told = await wire.ask("POST", "/mcp", mcp_run(_MAIL, mail), mcp_headers(_MAIL))
    show(told["error"]["message"])
    run = told["error"]["data"]["run"]
    say("", "The question is one record, wherever it was asked; the run waits, for a minute or a month:")
    command("questions list")
    async with engine_at(store) as engine:
        (asked,) = await inbox.entries(engine, await engine.question_records(QuestionFilter(run=run)))
        tables.questions([asked], json=False, all_=False)
        if interactive():
            from .ask import AskAtTerminal

            say("", "You decide:")
            answer: Any = await AskAtTerminal().ask(asked.record.question)
        else:
            answer = {"approved": True}
    say("", "The answer goes in by Agent Connect:")
    await wire.ask("POST", f"/connect/runs/{run}", answer)
    say("", "And the MCP client, asking again for the same run, has its result:")
    again = mcp_run(_MAIL, mail, **{"interlingua/run": run})
    told = await wire.ask("POST", "/mcp", again, mcp_headers(_MAIL))
    show_json(told["result"]["output"])


async def killed(wire: Wire, server: Process) -> None:
    """A run that streams while its server is killed goes on where it was."""
    say("4  kill -9", "This run counts slowly. We read its stream, and kill the server in the middle.")
    body = {"agent_id": "counter", "input": {"to": _TO, "delay": 0.25}, "stream_mode": "custom"}
    run = (await wire.ask("POST", "/connect/runs", body))["run_id"]
    path = f"/connect/runs/{run}/stream"
    from_the_start = {"last-event-id": "0"}  # without, a stream begins with what comes next
    wire.shown("GET", path, None, from_the_start, "-N")
    heard, last = "", ""
    async with wire.stream("GET", path, headers=from_the_start) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("id:"):
                last = line[3:].strip()
            heard += _text_of(line)
            if heard.count(" ") >= _TO // 2:
                break
    show(heard)
    prompt(f"kill -9 {server.pid}")
    await server.kill()
    say(
        "",
        "Nothing was said goodbye to. Another process takes up the store, and the stream is read on from where it was:",
    )
    prompt("interlingua serve …")
    await server.start()
    headers = {"last-event-id": last}
    wire.shown("GET", path, None, headers, "-N")
    more = ""
    async with wire.stream("GET", path, headers=headers) as answer:
        async for line in answer.aiter_lines():
            more += _text_of(line)
            if "all together" in more:
                break
    show(more)
    numbers = [word for word in (heard + more).split() if word.isdigit()][:_TO]
    if numbers != [str(number) for number in range(1, _TO + 1)]:
        raise CommandError(f"the stream was not taken up where it ended: {heard + more}")
    say("", f"1 to {_TO}, none lost and none twice: everything is on disk before anyone sees it.")


def _text_of(line: str) -> str:
    """The text of an output delta in a line of the stream."""
    if not line.startswith("data:"):
        return ""
    told = json.loads(line[5:])
    for holder in (told, told.get("values"), told.get("update")):
        delta = holder.get("delta") if isinstance(holder, dict) else None
        if isinstance(delta, dict) and isinstance(delta.get("text"), str):
            return str(delta["text"])
    return ""
