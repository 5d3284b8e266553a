"""`interlingua questions`: the inbox. See what agents wait for, follow it, and answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...options import Answer, Json, Limit, QuestionId, QuestionToAnswer, Reason, Store, examples

if TYPE_CHECKING:
    from ....engine.engine import Engine
    from ....engine.reading import AnyEngine
    from ....model.filters import QuestionFilter
    from ....model.run import Caller, Question, QuestionRecord

app = typer.Typer(
    rich_markup_mode="markdown",
    help="List, watch and answer the questions of agents.\n\n"
    "A run that needs input asks a question and waits, for a minute or a month. The first valid answer counts, "
    "wherever it is given, and everybody else who was asked is told. Without a command, open questions are listed.",
)

All = Annotated[bool, typer.Option("--all", help="Include questions that are answered, withdrawn or expired.")]
OfRun = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="RUN", help="Only questions of this run and the runs that it called.", show_default=False
    ),
]
Mine = Annotated[
    str | None,
    typer.Option(
        "--mine", metavar="CALLER", show_default=False,
        help="Only questions that this caller may answer: its id, or the name of its key.",
    ),
]  # fmt: skip


@app.callback(invoke_without_command=True)
def inbox(
    ctx: typer.Context,
    all_: All = False,
    run: OfRun = None,
    mine: Mine = None,
    limit: Limit = 50,
    json: Json = False,
    store: Store = None,
) -> None:
    from ....terminal.session import go

    if ctx.invoked_subcommand is None:
        go(_list(all_, run, mine, limit, json, store))
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        from ....terminal.errors import CommandError

        name = ctx.invoked_subcommand
        raise CommandError(
            f"options stand behind the command: interlingua questions {name} …, and then --{given[0].strip('_')}"
        )


@app.command("list", epilog=examples("interlingua questions", "interlingua questions list --all --json"))
def list_(
    all_: All = False,
    run: OfRun = None,
    mine: Mine = None,
    limit: Limit = 50,
    json: Json = False,
    store: Store = None,
) -> None:
    """List open questions, oldest first."""
    from ....terminal.session import go

    go(_list(all_, run, mine, limit, json, store))


async def _list(
    all_: bool, run: str | None, mine: str | None, limit: int, json: bool, store: Path | None
) -> None:  # fmt: skip
    from ....terminal import inbox, tables
    from ....terminal.session import reader_at

    async with reader_at(store) as engine:
        where, caller = await _where(engine, run, mine)
        where.state, where.limit = None if all_ else "open", limit
        found = await inbox.entries(engine, await engine.questions.search(where))
        if caller is not None:
            found = [entry for entry in found if inbox.is_for(entry, caller)]
    tables.questions(found, json=json, all_=all_)


async def _where(engine: AnyEngine, run: str | None, mine: str | None) -> tuple[QuestionFilter, Caller | None]:
    """Returns the filter for the listed questions, and the caller to whom they belong."""
    from ....model.filters import QuestionFilter
    from ....model.run import OWNER
    from ....security import scopes
    from ....terminal.inbox import caller_of
    from ....terminal.short_ids import find_run

    where = QuestionFilter(run=await find_run(engine, run) if run is not None else None)
    if mine is None:
        return where, None
    caller = await caller_of(engine, mine)
    where.caller, where.anyones = caller.id, caller.id == OWNER.id or scopes.sees(caller, "")
    return where, caller


@app.command(
    "watch", epilog=examples("interlingua questions watch", "interlingua questions watch --mine laptop --json")
)
def watch(run: OfRun = None, mine: Mine = None, json: Json = False, store: Store = None) -> None:
    """Follow the inbox until Ctrl-C.

    The command shows the open questions, and then each change in any process: asked, answered and by whom, withdrawn,
    expired, reminded. With `--json`, each change is a line.
    """
    from ....terminal.session import go

    go(_watch(run, mine, json, store))


async def _watch(run: str | None, mine: str | None, json: bool, store: Path | None) -> int:
    from ....terminal.session import reader_at
    from .watch import watch

    async with reader_at(store) as engine:
        where, caller = await _where(engine, run, mine)
        return await watch(engine, where, caller, json=json)


@app.command("show", epilog=examples("interlingua questions show 1a2b3c4d"))
def show(question: QuestionId, json: Json = False, store: Store = None) -> None:
    """Show one question.

    The command shows who asks and on whose behalf, the agent's last words, the question, the form of an answer, who may
    give it and until when; of a closed question, also its end.
    """
    from ....terminal.session import go

    go(_show(question, json, store))


async def _show(part: str, json: bool, store: Path | None) -> None:
    from ....terminal import inbox, tables
    from ....terminal.session import reader_at
    from ....terminal.short_ids import find_question

    async with reader_at(store) as engine:
        record = await engine.questions.get(await find_question(engine, part))
        (entry,) = await inbox.entries(engine, [record])
        context = await inbox.context(engine, entry)
    tables.question(entry, context, json=json)


ANSWER_EXAMPLES = examples(
    "interlingua questions answer 1a2b3c4d y",
    'interlingua questions answer 1a2b3c4d n --reason "wrong address"',
    "interlingua questions answer 1a2b3c4d '{\"approved\": true}'",
    "interlingua questions answer last",
)


@app.command("answer", epilog=ANSWER_EXAMPLES)
def answer(
    question: QuestionToAnswer, answer: Answer = None, reason: Reason = None, json: Json = False, store: Store = None
) -> None:
    """Answer a question, and let its run go on.

    The question is shown on stderr first. The run goes on in its process, or when it is resumed.

    `last` works only at a terminal, where the command asks for confirmation: a newer question may have come.
    """
    from ....terminal.session import go

    go(_answer(question, answer, reason, json, store))


async def _answer(part: str, text: str | None, reason: str | None, json: bool, store: Path | None) -> int:
    from ....terminal import inbox
    from ....terminal.console import as_json, error_console, note
    from ....terminal.errors import CommandError, ExitCode
    from ....terminal.parts import question_view
    from ....terminal.resume_hint import resume_command
    from ....terminal.session import confirmed, engine_at, interactive
    from ....terminal.short_ids import short

    if part == "last" and not interactive():
        raise CommandError(
            "`last` needs a terminal, where the question is shown and confirmed",
            hint="interlingua questions list shows the ids; name one of them",
        )
    async with engine_at(store) as engine:
        record = await _asked(engine, part)
        if record.state != "open":
            raise record.too_late()
        question = record.question
        (entry,) = await inbox.entries(engine, [record])
        note(f"question {short(question.id)} of {entry.way}, run {short(question.run)}")
        if text is not None:  # else it is shown when it is asked
            error_console().print(question_view(question))
        value = await _value(question, text, reason)
        if (
            part == "last"
            and text is not None
            and not await confirmed(f"answer it with {as_json(value, pretty=False)}?")
        ):
            raise CommandError("nothing was answered", exit_code=ExitCode.FAILED)
        await engine.questions.answer(question.id, value, door="cli")
        if json:
            typer.echo(as_json({"question": question.id, "run": question.run, "answer": value}))
        elif await nobody_runs(engine, question.run):
            resume = await resume_command(engine, record.runs[0], store)
            note(f"answered; nobody runs it now, take it up with: {resume}")
        else:
            note(f"answered; run {short(question.run)} goes on")
    return 0


async def _asked(engine: Engine, part: str) -> QuestionRecord:
    """The question that is meant: by its id, by its run that waits for one answer, or the one that was asked last."""
    from ....model.errors import QuestionNotFound, RunNotFound
    from ....model.filters import QuestionFilter
    from ....terminal.errors import CommandError, ExitCode
    from ....terminal.short_ids import find_question, find_run, short

    if part == "last":
        waiting = await engine.questions.search(QuestionFilter(limit=100_000))
        if not waiting:
            raise QuestionNotFound("nothing waits for an answer")
        return max(waiting, key=lambda record: record.question.asked_at)
    try:
        return await engine.questions.get(await find_question(engine, part))
    except QuestionNotFound as missing:
        try:
            run = await find_run(engine, part)
            await engine.runs.get(run)  # raises where there is none
        except RunNotFound:
            raise missing from None
    waiting = await engine.questions.search(QuestionFilter(run=run))
    if not waiting:
        late = await engine.questions.last_answer_text(run)
        raise CommandError(f"run {short(run)} waits for no answer{late}", exit_code=ExitCode.CONFLICT)
    if len(waiting) > 1:
        asked = "\n".join(f"{short(one.id)}  {one.prompt or one.type}" for one in (r.question for r in waiting))
        raise CommandError(f"run {short(run)} asks {len(waiting)} questions", hint=f"name one of them:\n{asked}")
    return waiting[0]


async def nobody_runs(engine: AnyEngine, run: str) -> bool:
    """Returns whether a run that has not ended stays as it is until a person resumes it by hand."""
    return await engine.runs.blocked_report.is_abandoned(run)


async def _value(question: Question, text: str | None, reason: str | None) -> Any:
    from ....terminal.errors import CommandError
    from ....terminal.input_args import text_of
    from ....terminal.session import interactive
    from ....terminal.short_ids import short
    from ....terminal.typed_answers import answer_from, describe_fields, example_of

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
    from ....terminal.ask import AskAtTerminal

    try:
        return await AskAtTerminal().ask(question)
    except EOFError:
        raise CommandError("no answer was given") from None
