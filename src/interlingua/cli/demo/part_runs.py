"""The parts of the demo about runs: a question that is asked in one protocol and answered in another, and a crash."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.events import QuestionAnswered
from ...terminal.errors import CommandError
from .part_doors import mcp_headers, mcp_run
from .tour import Wire, command, path, say, show, show_json

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...model.run import Question
    from .processes import Process

_MAIL = "org.agntcy.mailcomposer"
_TO = 8


async def asked_and_answered(wire: Wire, store: Path) -> None:
    """Shows a question that is asked over MCP, seen on the command line, and answered over Connect."""
    from ...model.filters import QuestionFilter
    from ...terminal import inbox, tables
    from ...terminal.session import engine_at, interactive

    say(
        "3  asked in one protocol, answered in another",
        "This agent asks before it sends a mail. It is called by an MCP client that cannot be asked anything:",
    )
    mail = {"message": "To: ada@example.org. Subject: Lunch. At noon?"}
    told = await wire.ask("POST", "/mcp", mcp_run(_MAIL, mail), mcp_headers(_MAIL), refused=True)
    show(told["error"]["message"])
    run = told["error"]["data"]["run"]
    say("", "The question is one record, wherever it was asked; the run waits, for a minute or a month:")
    command(f"questions list --store {path(store)}")
    async with engine_at(store) as engine:
        (asked,) = await inbox.entries(engine, await engine.questions.search(QuestionFilter(run=run)))
        tables.questions([asked], json=False, all_=False)
        answer: Any = {"approved": True}
        if interactive():
            say("", "You decide, here or in another terminal:")
            answer = await _decided(engine, asked.record.question)
    if answer is not None:
        say("", "The answer goes in by Agent Connect:")
        await wire.ask("POST", f"/connect/runs/{run}", answer)
    say("", "And the MCP client, asking again for the same run, has its result:")
    again = mcp_run(_MAIL, mail, **{"interlingua/run": run})
    told = await wire.ask("POST", "/mcp", again, mcp_headers(_MAIL))
    show_json(told["result"]["output"])


async def _decided(engine: Engine, question: Question) -> Any:
    """Returns the answer that is given at this terminal, or None if an answer came from elsewhere first."""
    from ...terminal.ask import AskAtTerminal
    from ...terminal.follow_run import first

    async def elsewhere() -> None:
        async with contextlib.aclosing(engine.runs.events(question.run)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event.body, QuestionAnswered) and event.body.question == question.id:
                    answer = event.body.answer
                    say("", f"answered by {answer.by} through {answer.door}")
                    return

    try:
        return await first([elsewhere(), AskAtTerminal().ask(question)])
    except EOFError:
        raise CommandError("no answer was given, so the tour ends here") from None


async def killed(wire: Wire, server: Process) -> None:
    """A run that streams while its server is killed goes on where it was."""
    say("4  kill -9", "This run counts slowly. We read its stream, and kill the server in the middle.")
    body = {"agent_id": "counter", "input": {"to": _TO, "delay": 0.25}, "stream_mode": "custom"}
    run = (await wire.ask("POST", "/connect/runs", body))["run_id"]
    stream = f"/connect/runs/{run}/stream"
    from_the_start = {"last-event-id": "0"}  # without, a stream begins with what comes next
    wire.shown("GET", stream, None, from_the_start, "-N")
    heard, last = "", ""
    async with wire.stream("GET", stream, headers=from_the_start) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("id:"):
                last = line[3:].strip()
            heard += _text_of(line)
            if heard.count(" ") >= _TO // 2:
                break
    show(heard)
    pid = server.pid
    await server.kill()
    say(
        "",
        f"Process {pid} is gone, by kill -9: it finished nothing. Another one takes up its store, on its port, and the "
        "stream is read on from where it was:",
    )
    await server.start()
    headers = {"last-event-id": last}
    wire.shown("GET", stream, None, headers, "-N")
    more = ""
    async with wire.stream("GET", stream, headers=headers) as answer:
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
