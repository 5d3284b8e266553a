"""The parts of the demo about runs: a question that is asked in one protocol and answered in another, and a crash."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.events import QuestionAnswered
from ...terminal.errors import CommandError
from .door_tour import Doors
from .tour import command, path, say, show, show_json

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...model.run import Question
    from .processes import Process

_MAIL = "org.agntcy.mailcomposer"
_TO = 8


async def asked_and_answered(doors: Doors, store: Path) -> None:
    """Shows a question that is asked in one protocol, seen on the command line, and answered in another."""
    from ...model.filters import QuestionFilter
    from ...terminal import inbox, tables
    from ...terminal.session import engine_at, interactive

    asking, answering = doors.first(lambda demo: demo.ask), doors.first(lambda demo: demo.answer)
    ask, result, answer_by = asking.demo.ask, asking.demo.result, answering.demo.answer
    assert ask is not None
    assert result is not None
    assert answer_by is not None
    say(
        "3  asked in one protocol, answered in another",
        f"This agent asks before it sends a mail. It is called by a client of {asking.demo.title} that cannot be "
        "asked anything:",
    )
    mail = {"message": "To: ada@example.org. Subject: Lunch. At noon?"}
    run = await ask(asking, _MAIL, mail)
    say("", "The question is one record, wherever it was asked; the run waits, for a minute or a month:")
    command(f"questions list --store {path(store)}")
    async with engine_at(store) as engine:
        (entry,) = await inbox.entries(engine, await engine.questions.search(QuestionFilter(run=run)))
        tables.questions([entry], json=False, all_=False)
        answer: Any = {"approved": True}
        if interactive():
            say("", "You decide, here or in another terminal:")
            answer = await _decided(engine, entry.record.question)
    if answer is not None:
        say("", f"The answer goes in by {answering.demo.title}:")
        await answer_by(answering, run, answer)
    say("", "And the first client, asking again for the same run, has its result:")
    show_json(await result(asking, _MAIL, mail, run))


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


async def killed(doors: Doors, server: Process) -> None:
    """A run that streams while its server is killed goes on where it was."""
    door = doors.first(lambda demo: demo.read)
    begin, read = door.demo.begin, door.demo.read
    assert begin is not None
    assert read is not None
    say("4  kill -9", "This run counts slowly. We read its stream, and kill the server in the middle.")
    run = await begin(door, "counter", {"to": _TO, "delay": 0.25})
    before, last = "", ""
    async with contextlib.aclosing(read(door, run, "")) as stream:  # type: ignore[type-var]
        async for piece, place in stream:
            before, last = before + piece, place
            if before.count(" ") >= _TO // 2:
                break
    show(before)
    pid = server.pid
    await server.kill()
    say(
        "",
        f"Process {pid} is gone, by kill -9: it finished nothing. Another one takes up its store, on its port, and the "
        "stream is read on from where it was:",
    )
    await server.start()
    after = ""
    async with contextlib.aclosing(read(door, run, last)) as stream:  # type: ignore[type-var]
        async for piece, _ in stream:
            after += piece
            if "all together" in after:
                break
    show(after)
    numbers = [word for word in (before + after).split() if word.isdigit()][:_TO]
    if numbers != [str(number) for number in range(1, _TO + 1)]:
        raise CommandError(f"the stream was not taken up where it ended: {before + after}")
    say("", f"1 to {_TO}, none lost and none twice: everything is on disk before anyone sees it.")
