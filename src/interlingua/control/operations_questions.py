"""The operations on questions: list, follow, answer, withdraw."""

from __future__ import annotations

from starlette.responses import Response

from ..model.filters import QuestionFilter
from . import access, event_streams, wire
from .api import ControlApi
from .operation import Call, Operation
from .views import question_view

_DOOR = "control"


async def find(api: ControlApi, call: Call) -> wire.Questions | Response:
    """Returns questions in the order of their changes; as a stream it goes on with every change."""
    query: wire.QuestionSearch = call.query
    where = QuestionFilter(
        run=query.run, state=None if query.state == "any" else query.state, caller=call.caller.id,
        anyones=access.own(call.caller) is None, after=query.cursor, limit=query.limit,
    )  # fmt: skip
    if access.is_owner(call.caller):
        where.caller = None
    if query.run is not None:
        await access.find_run(api.engine, query.run, call.caller)
    if event_streams.wants_stream(call.request):
        where.after = event_streams.cursor(call.request, query.cursor)
        return api.stream(event_streams.questions(api.engine, where, call.caller))
    records = await api.engine.questions.search(where)
    cursor = records[-1].change if records else query.cursor
    shown = await access.visible(api.engine, records, call.caller)
    return wire.Questions(questions=[question_view(record) for record in shown], cursor=cursor)


async def get(api: ControlApi, call: Call) -> wire.Question:
    return question_view(await access.find_question(api.engine, call.path("question"), call.caller))


async def answer(api: ControlApi, call: Call) -> wire.Question:
    record = await access.find_question(api.engine, call.path("question"), call.caller, "answer")
    await api.engine.questions.answer(record.question.id, call.body.value, by=call.caller, door=_DOOR)
    return question_view(await api.engine.questions.get(record.question.id))


async def withdraw(api: ControlApi, call: Call) -> wire.Question:
    record = await access.find_question(api.engine, call.path("question"), call.caller, "cancel")
    await api.engine.questions.withdraw(record.question.id, reason=call.body.reason, by=call.caller)
    return question_view(await api.engine.questions.get(record.question.id))


async def counts(api: ControlApi) -> int:
    """Returns how many questions are open."""
    return sum(count for _, count, _ in await api.engine.questions.counts())


OPERATIONS = [
    Operation(method="GET", path="/questions", handler=find, query=wire.QuestionSearch, answer=wire.Questions,
              summary="Find questions, or follow them as a stream", action="read", streams=True),
    Operation(method="GET", path="/questions/{question}", handler=get, answer=wire.Question,
              summary="Get a question"),
    Operation(method="POST", path="/questions/{question}/answer", handler=answer, body=wire.GiveAnswer,
              answer=wire.Question, summary="Answer a question; the first valid answer wins"),
    Operation(method="POST", path="/questions/{question}/withdraw", handler=withdraw, body=wire.Withdraw,
              optional=True, answer=wire.Question, summary="Close a question that nobody need answer"),
]  # fmt: skip
