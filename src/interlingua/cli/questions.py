"""`interlingua questions`: see what agents wait for, and answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Answer, Json, Limit, QuestionId, Reason, Store, examples

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..model.run import Question

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="See what agents wait for, and answer.\n\n"
    "A run that needs input asks a question and waits, for a minute or a month. The first valid answer counts.",
)


@app.command("list", epilog=examples("interlingua questions list", "interlingua questions list --all --json"))
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Also those that are answered, withdrawn or expired.")] = False,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only those of this run and the runs that it called.")
    ] = None,
    limit: Limit = 50,
    json: Json = False,
    store: Store = None,
) -> None:
    """List open questions, oldest first."""
    from .session import go

    go(_list(all_, run, limit, json, store))


async def _list(all_: bool, run: str | None, limit: int, json: bool, store: Path | None) -> None:
    from . import tables
    from .ids import find_run
    from .session import engine_at

    async with engine_at(store) as engine:
        of = await find_run(engine, run) if run is not None else None
        asked = await engine.questions(run=of, state=None if all_ else "open", limit=limit)
        found = [await engine.question(question.id) for question in asked]
    tables.questions(found, json=json)


@app.command("show", epilog=examples("interlingua questions show 1a2b3c4d"))
def show(question: QuestionId, json: Json = False, store: Store = None) -> None:
    """Show one question: what is asked, what an answer looks like, and the answer if there is one."""
    from .session import go

    go(_show(question, json, store))


async def _show(part: str, json: bool, store: Path | None) -> None:
    from . import tables
    from .ids import find_question
    from .session import engine_at

    async with engine_at(store) as engine:
        question, state, given = await engine.question(await find_question(engine, part))
    tables.question(question, state, given, json=json)


@app.command(
    "answer",
    epilog=examples(
        "interlingua questions answer 1a2b3c4d y",
        'interlingua questions answer 1a2b3c4d n --reason "wrong address"',
        "interlingua questions answer 1a2b3c4d '{\"approved\": true}'",
    ),
)
def answer(
    question: QuestionId, answer: Answer = None, reason: Reason = None, json: Json = False, store: Store = None
) -> None:
    """Answer a question. The run goes on where it runs, or when it is taken up again."""
    from .session import go

    go(_answer(question, answer, reason, json, store))


async def _answer(part: str, text: str | None, reason: str | None, json: bool, store: Path | None) -> int:
    from .ids import find_question
    from .session import engine_at

    async with engine_at(store) as engine:
        question, state, _ = await engine.question(await find_question(engine, part))
        return await _give(engine, question, state, text, reason, json)


async def answer_oldest(part: str, text: str | None, reason: str | None, json: bool, store: Path | None) -> int:
    """For `interlingua runs answer`."""
    from .errors import CommandError, ExitCode
    from .ids import find_run, short
    from .session import engine_at

    async with engine_at(store) as engine:
        run = await find_run(engine, part)
        await engine.run(run)  # raises where there is none
        waiting = await engine.questions(run=run, limit=1)
        if not waiting:
            raise CommandError(f"run {short(run)} waits for no answer", exit_code=ExitCode.CONFLICT)
        return await _give(engine, waiting[0], "open", text, reason, json)


async def _give(
    engine: Engine, question: Question, state: str, text: str | None, reason: str | None, json: bool
) -> int:  # fmt: skip
    from ..model.errors import AlreadyAnswered
    from .ids import short
    from .render import as_json, note

    if state != "open":
        raise AlreadyAnswered(f"question {short(question.id)} is {state} already")
    value = await _value(question, text, reason)
    await engine.answer(question.id, value)
    if json:
        typer.echo(as_json({"question": question.id, "run": question.run, "answer": value}))
        return 0
    row = await engine.store.run(question.run)
    if row is not None and row.worker is None:
        note(f"answered; nobody runs it now, take it up with: interlingua run TARGET --resume {short(question.run)}")
    else:
        note(f"answered; run {short(question.run)} goes on")
    return 0


async def _value(question: Question, text: str | None, reason: str | None) -> Any:
    from .errors import CommandError
    from .forms import answer_from, describe_fields, example_of
    from .ids import short
    from .inputs import text_of
    from .session import interactive

    if text is not None:
        return answer_from(question.answer_schema, question.options, text_of(text), reason)
    if not interactive():
        fields = "\n".join(f"  {line}" for line in describe_fields(question.answer_schema))
        example = example_of(question.answer_schema, question.options)
        raise CommandError(
            f"what is the answer? ({question.prompt or question.type})",
            hint=f"interlingua questions answer {short(question.id)} {example}"
            + (f"\nan answer has\n{fields}" if fields else ""),
        )
    from .ask import AskAtTerminal

    try:
        return await AskAtTerminal().ask(question)
    except EOFError:
        raise CommandError("no answer was given") from None
