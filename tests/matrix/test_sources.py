"""Each source mounted alone: what its wire carries arrives in the engine, and what goes to its agents arrives there.

What the tables of parity say of mounts is held to: where they declare no loss all of it arrives, and where they declare
one, no more than what is declared.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

import interlingua as il
from interlingua.engine.handler import mounted_run
from interlingua.model.errors import InvalidAnswer
from interlingua.model.events import (
    ArtifactAdded,
    CancelRequested,
    MessageSent,
    OutputDelta,
    QuestionAsked,
    QuestionWithdrawn,
    Warned,
)
from interlingua.model.filters import RunFilter
from interlingua.model.prompt_input import prompt_input
from interlingua.model.question_forms import choices, form
from interlingua.protocols.parity import FEATURES
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from interlingua.terminal.typed_answers import answer_from
from tests.kit.engines import PATIENT, QUICK, engine
from tests.kit.mounts.connect import parked
from tests.kit.postgres import beside
from tests.kit.wait_for import PATIENCE

from . import behaviours as does
from .gate import Gate
from .sources.native import careful
from .sources.started import started

SETTINGS = il.Settings(**{**{n: getattr(PATIENT, n) for n in PATIENT.__struct_fields__}, "cancel_grace": 10})

every = pytest.mark.parametrize("protocol", does.PROTOCOLS)
typed = pytest.mark.parametrize("protocol", [p for p in does.PROTOCOLS if p != "editor"])


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, str]]:
    with started() as found:
        yield found


def lost(protocol: str, feature: str) -> bool:
    return bool(importlib.import_module(f"interlingua.protocols.{protocol}.parity").MOUNT[feature].lost)


class Mounted:
    """The agents of one source in an engine."""

    def __init__(self, protocol: str, eng: il.Engine, gate: Gate, agents: list[il.Agent[..., Any]]) -> None:
        self.protocol, self.engine, self.gate = protocol, eng, gate
        self.cards = {agent.card.name: agent.card for agent in agents}
        self.talker = f"talker-{protocol}"

    async def tell(self, text: str, **options: Any) -> il.Run:
        return (await self.engine.runs.submit(il.RunRequest(self.talker, input={"text": text}, **options))).run

    async def end(self, run: il.Run) -> il.Run:
        return await self.engine.runs.wait(run.id, timeout=PATIENCE)

    async def hear(self, text: str, **options: Any) -> str:
        ended = await self.end(await self.tell(text, **options))
        assert ended.status is il.Status.SUCCEEDED, ended.error
        return str(ended.output["text"])

    async def asked(self, run: il.Run) -> il.model.run.Question:
        async with asyncio.timeout(PATIENCE):
            async for event in self.engine.runs.events(run.id):
                if isinstance(event.body, QuestionAsked):
                    return event.body.question
        raise AssertionError("the run ended, and asked nothing")

    async def until_said(self, run: il.Run, text: str) -> None:
        said = ""
        async with asyncio.timeout(PATIENCE):
            async for event in self.engine.runs.events(run.id):
                if isinstance(event.body, OutputDelta):
                    said += event.body.delta.get("text", "")
                    if said == text:
                        return
        raise AssertionError(f"the run ended, and said {said!r}")

    async def bodies(self, run: il.Run, *kinds: type) -> list[Any]:
        events = [event async for event in self.engine.runs.events(run.id, follow=False)]
        return [event.body for event in events if isinstance(event.body, kinds)]

    async def given(self, run: il.Run) -> tuple[list[Any], list[Any]]:
        """Files and data that came beside the output."""
        parts: list[Any] = []
        for shown in await self.bodies(run, ArtifactAdded, MessageSent):
            parts += shown.artifact.parts if isinstance(shown, ArtifactAdded) else shown.message.parts
        files = [
            (part.name, part.media_type, part.data or await does.call("GET", part.url))
            for part in parts
            if isinstance(part, il.FilePart)
        ]
        return files, [part.data for part in parts if isinstance(part, il.DataPart)]


@contextlib.asynccontextmanager
async def mounted(
    protocol: str, targets: dict[str, str], store: Path, settings: il.Settings = SETTINGS
) -> AsyncIterator[Mounted]:
    agents = await load_all(parse(targets[protocol]))
    async with engine(store, *agents, settings=settings) as eng, Gate() as gate:
        yield Mounted(protocol, eng, gate, agents)


# -- tables ---------------------------------------------------------------------------------------------------


@every
def test_the_table_of_a_mount_says_something_of_every_feature(protocol: str) -> None:
    table = importlib.import_module(f"interlingua.protocols.{protocol}.parity").MOUNT
    assert list(table) == [feature.id for feature in FEATURES]
    assert all(carried.how for carried in table.values())


# -- running --------------------------------------------------------------------------------------------------


@every
async def test_the_agents_of_a_source_are_listed_with_what_they_say_of_themselves(
    protocol: str, targets: dict[str, str], store: Path
) -> None:
    async with mounted(protocol, targets, store) as there:
        told = {name: card.description for name, card in there.cards.items()}
        wanted = {there.talker: does.TALKER}
        if protocol != "editor":
            wanted[f"typed-{protocol}"] = does.TYPED
        assert told == wanted


@every
async def test_what_an_agent_says_is_the_output(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there:
        assert await there.hear("say a b c") == "a b c "


@every
async def test_output_is_here_while_its_agent_still_works(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there:
        run = await there.tell(f"stream {there.gate.url}")
        await there.until_said(run, "one ")
        assert (await there.engine.runs.get(run.id)).status is il.Status.RUNNING
        there.gate.open("stream")
        assert (await there.end(run)).output == {"text": "one two "}
        assert "".join(body.delta["text"] for body in await there.bodies(run, OutputDelta)) == "one two "


# -- content --------------------------------------------------------------------------------------------------


@typed
async def test_objects_go_in_and_come_out_as_they_are(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there:
        assert not lost(protocol, "structured_in")
        assert not lost(protocol, "structured_out")
        name = f"typed-{protocol}"
        assert there.cards[name].input["properties"] == does.NUMBERS["properties"]
        assert there.cards[name].output["properties"] == does.TOTAL["properties"]
        run = (await there.engine.runs.submit(il.RunRequest(name, input=does.NUMBERS_IN))).run
        assert (await there.end(run)).output == does.TOTAL_OUT
        joined: Any = {}
        deltas = [body.delta for body in await there.bodies(run, OutputDelta)]
        for delta in deltas:
            joined = il.model.delta.combine(joined, delta)
        assert joined == does.TOTAL_OUT


async def test_an_editor_agent_takes_and_gives_text_and_nothing_else(targets: dict[str, str], store: Path) -> None:
    assert lost("editor", "structured_in")
    assert lost("editor", "structured_out")
    async with mounted("editor", targets, store) as there:
        card = there.cards[there.talker]
        assert list(card.input["properties"]) == list(card.output["properties"]) == ["text"]


@every
async def test_files_and_data_go_along_with_what_an_agent_is_told(
    protocol: str, targets: dict[str, str], store: Path
) -> None:
    async with mounted(protocol, targets, store) as there:
        name, media_type, body = does.FILE_IN
        where: dict[str, Any] = {"data": body}
        if protocol == "peer":  # files have addresses there
            where = {"url": there.gate.offer(name, media_type, body)}
        file = il.FilePart(name=name, media_type=media_type, **where)
        parts: list[Any] = [il.TextPart("files"), file, il.DataPart(does.DATA_IN)]
        request = il.RunRequest(
            there.talker, input=prompt_input(there.cards[there.talker], parts), messages=[il.Message("user", parts)]
        )
        ended = await there.end((await there.engine.runs.submit(request)).run)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        told = json.loads(ended.output["text"])
        assert told["files"] == ([] if lost(protocol, "files_in") else [does.EXPECTED_FILE])
        assert told["data"] == ([] if lost(protocol, "data_in") else [does.DATA_IN])


async def test_bytes_reach_a_peer_by_an_address_where_this_process_offers_files(
    targets: dict[str, str], store: Path
) -> None:
    name, media_type, body = does.FILE_IN
    parts: list[Any] = [il.TextPart("files"), il.FilePart(name=name, media_type=media_type, data=body)]
    async with mounted("peer", targets, store) as there:

        async def kept() -> None:
            pass

        def told(run: il.Run) -> Any:
            return json.loads(run.output["text"])["files"]

        request = il.RunRequest(there.talker, input={"text": "files"}, messages=[il.Message("user", parts)])
        run = (await there.engine.runs.submit(request)).run
        assert told(await there.end(run)) == []
        (warning,) = await there.bodies(run, Warned)
        assert name in warning.message
        there.engine.files.register(lambda body, kind, name: (there.gate.offer(name or "", kind, body), kept()))
        assert told(await there.end((await there.engine.runs.submit(request)).run)) == [does.EXPECTED_FILE]


@every
async def test_files_and_data_come_back(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there:
        run = await there.tell("files")
        ended = await there.end(run)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        files, data = await there.given(run)
        assert files == ([] if lost(protocol, "files_out") else [does.FILE_OUT])
        assert data == ([] if lost(protocol, "data_out") else [does.DATA_OUT])


# -- threads --------------------------------------------------------------------------------------------------


@every
async def test_an_agent_remembers_what_was_said_on_a_thread_and_nothing_of_others(
    protocol: str, targets: dict[str, str], store: Path
) -> None:
    async with mounted(protocol, targets, store) as there:
        one, other = [(await there.engine.threads.create()).id for _ in range(2)]
        await there.hear("remember blue", thread=one)
        assert await there.hear("recall", thread=one) == ("nothing" if lost(protocol, "threads") else "blue")
        assert await there.hear("recall", thread=other) == "nothing"
        assert await there.hear("recall") == "nothing"


# -- questions ------------------------------------------------------------------------------------------------


@every
async def test_a_question_with_choices_has_them_here_and_the_choice_arrives(
    protocol: str, targets: dict[str, str], store: Path
) -> None:
    async with mounted(protocol, targets, store) as there:
        assert not lost(protocol, "choose")
        run = await there.tell("choose")
        question = await there.asked(run)
        assert question.prompt == does.MAY_I
        offered = choices(question)
        assert offered is not None
        assert [option.id for option in offered.options] == [id_ for id_, *_ in does.CHOICES]
        await there.engine.questions.answer(question.id, offered.answers["reject"])
        assert (await there.end(run)).output == {"text": "chose reject"}


@every
async def test_a_question_with_a_form_has_its_fields_here_and_they_arrive_filled_in(
    protocol: str, targets: dict[str, str], store: Path
) -> None:
    async with mounted(protocol, targets, store) as there:
        assert not lost(protocol, "form")
        run = await there.tell("form")
        question = await there.asked(run)
        assert question.prompt == does.WHO
        shown = form(question.answer_schema)
        assert shown.exact
        assert {name: field["type"] for name, field in shown.schema["properties"].items()} == {
            "name": "string", "age": "integer",
        }  # fmt: skip
        await there.engine.questions.answer(question.id, {"name": "Ada", "age": 36})
        assert (await there.end(run)).output == {"text": "name is Ada, age is 36"}


@every
@pytest.mark.parametrize("what", does.WANTED)
async def test_a_question_for_more_than_a_flat_form_has_its_schema_here_and_the_answer_arrives_whole(
    protocol: str, targets: dict[str, str], store: Path, what: str
) -> None:
    async with mounted(protocol, targets, store) as there:
        assert not lost(protocol, "form")
        run = await there.tell(f"want {what}")
        question = await there.asked(run)
        assert (question.prompt, question.answer_schema) == does.WANTED[what]
        with pytest.raises(il.InterlinguaError):
            await there.engine.questions.answer(question.id, does.WRONG[what])
        await there.engine.questions.answer(question.id, does.GIVEN[what])
        assert json.loads((await there.end(run)).output["text"]) == does.GIVEN[what]


@every
async def test_a_question_in_words_is_answered_in_words(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there:
        assert not lost(protocol, "ask")
        run = await there.tell("ask")
        question = await there.asked(run)
        assert question.prompt == does.WHAT
        assert question.answer_schema["required"] == ["text"]
        await there.engine.questions.answer(question.id, {"text": "hello there"})
        assert (await there.end(run)).output == {"text": "you said: hello there"}


# -- ends -----------------------------------------------------------------------------------------------------


@every
async def test_a_run_that_is_cancelled_stops_its_agent(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there, asyncio.timeout(PATIENCE):
        run = await there.tell(f"wait {there.gate.url}")
        await there.gate.note("begun")
        await there.until_said(run, "waiting ")
        assert not there.gate.noted("cancelled")
        await there.engine.runs.cancel(run.id)
        await there.gate.note("cancelled")
        assert (await there.end(run)).status is il.Status.CANCELLED


@every
@pytest.mark.parametrize("transient", [True, False])
async def test_an_error_keeps_its_code_its_words_its_details_and_whether_it_may_pass(
    protocol: str, targets: dict[str, str], store: Path, transient: bool
) -> None:
    async with mounted(protocol, targets, store) as there:
        ended = await there.end(await there.tell(f"fail too_tired {'yes' if transient else 'no'}"))
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert ended.error.message == does.broke("too_tired")
        assert (ended.error.code == "too_tired") is not lost(protocol, "error_code")
        assert ended.error.transient is (transient and not lost(protocol, "error_transient"))
        assert ended.error.details == (None if lost(protocol, "error_details") else does.DETAILS)


# -- beside what is said --------------------------------------------------------------------------------------


@every
async def test_metadata_goes_along(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there, asyncio.timeout(PATIENCE):
        metadata = {"ticket": "42", "deep": {"a": [1]}}
        assert await there.hear(f"meta {there.gate.url}", metadata=metadata) == "ok"
        heard = await there.gate.note("meta")
        assert heard["metadata"] == (None if lost(protocol, "metadata") else metadata)


@every
async def test_a_trace_goes_on_and_counts_the_mount(protocol: str, targets: dict[str, str], store: Path) -> None:
    async with mounted(protocol, targets, store) as there, asyncio.timeout(PATIENCE):
        assert not lost(protocol, "trace")
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        trace = {"traceparent": parent, "tracestate": "vendor=1", "baggage": "who=ada"}
        await there.hear(f"meta {there.gate.url}", trace=trace)
        heard = await there.gate.note("meta")
        assert heard["traceparent"].split("-")[1] == parent.split("-")[1]
        assert heard["tracestate"] == "vendor=1"
        assert set(heard["baggage"].replace(" ", "").split(",")) == {"who=ada", "interlingua-hops=1"}


# -- servers of ours ------------------------------------------------------------------------------------------

WAYS = {
    "connect": "connect+{}/connect", "editor": "editor+{}/editor", "mcp": "mcp+{}/mcp", "peer": "peer+{}/peer",
    "cap": "cap+{}/cap",
}  # fmt: skip


@contextlib.asynccontextmanager
async def mounted_ours(
    protocol: str, store: Path, settings: il.Settings = SETTINGS, *agents: Any
) -> AsyncIterator[tuple[Server, Mounted]]:
    """Our own agents behind a server of ours, mounted over one of its doors."""
    served = agents or await load_all(parse(str(Path(__file__).parent / "sources" / "native.py")))
    async with serving(beside(store, "there"), list(served), ServeSettings(port=0, engine=settings)) as server:
        name = served[0].card.name
        target = f"{WAYS[protocol].format(server.address)}#{name}"
        async with mounted(protocol, {protocol: target}, store, settings) as there, asyncio.timeout(PATIENCE):
            there.talker = name
            yield server, there


@every
async def test_a_run_that_is_cancelled_at_its_source_is_cancelled_here(protocol: str, store: Path) -> None:
    async with mounted_ours(protocol, store) as (server, there):
        for text in (f"wait {there.gate.url}", "ask"):
            run = await there.tell(text)
            await (there.asked(run) if text == "ask" else there.until_said(run, "waiting "))
            (remote,) = await server.engine.runs.search(RunFilter(status=[il.Status.RUNNING, il.Status.WAITING]))
            await server.engine.runs.cancel(remote.id, reason="enough")
            ended = await there.end(run)
            assert ended.error is not None
            assert (ended.status, ended.error.code) == (il.Status.CANCELLED, "cancelled"), ended.error
            (requested,) = await there.bodies(run, CancelRequested)
            assert requested.reason == ended.error.message
            assert not ended.questions


@every
async def test_an_agent_of_ours_meets_the_same_over_every_wire(protocol: str, store: Path) -> None:
    name, media_type, body = does.FILE_IN
    async with mounted_ours(protocol, store) as (_, there):
        there.engine.files.register(
            lambda body, kind, name: (there.gate.offer(name or "", kind, body), asyncio.sleep(0))
        )
        parts: list[Any] = [
            il.TextPart("files"), il.FilePart(name=name, media_type=media_type, data=body), il.DataPart(does.DATA_IN),
        ]  # fmt: skip
        request = il.RunRequest(
            there.talker, input=prompt_input(there.cards[there.talker], parts), messages=[il.Message("user", parts)]
        )
        run = (await there.engine.runs.submit(request)).run
        ended = await there.end(run)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        told = json.loads(ended.output["text"])
        assert (told["files"], told["data"]) == ([does.EXPECTED_FILE], [does.DATA_IN])
        assert await there.given(run) == ([does.FILE_OUT], [does.DATA_OUT])
        thread = (await there.engine.threads.create()).id
        await there.hear("remember blue", thread=thread)
        assert await there.hear("recall", thread=thread) == "blue"
        run = await there.tell("choose")
        offered = choices(question := await there.asked(run))
        assert offered is not None
        assert (question.prompt, list(offered.answers)) == (does.MAY_I, ["allow", "reject"])
        await there.engine.questions.answer(question.id, offered.answers["allow"])
        assert (await there.end(run)).output == {"text": "chose allow"}
        await there.hear(f"meta {there.gate.url}", metadata={"ticket": "42"})
        assert (await there.gate.note("meta"))["metadata"] == {"ticket": "42"}


SHAPES: dict[str, tuple[Any, Any]] = {
    "list": (list[str], ["a", "[]"]),
    "deep list": (list[list[int | None]], [[1, None], []]),
    "text": (str, '{"not": "JSON here"}'),
    "number": (float, 2.5),
    "whole number": (int, 7),
    "yes": (bool, True),
    "no": (bool, False),
    "word": (Literal["red", "blue"], "blue"),
    "words": (list[Literal["red", "blue"]], ["blue"]),
    "names": (dict[str, list[int]], {"a": [1]}),
    "nothing": (int | None, None),
    "anything": (Any, {"answer": [None, True, "x"]}),
    "one of two": (int | list[int], [1]),
    "beside": (TypedDict("Beside", {"name": str, "tags": NotRequired[list[str]]}), {"name": "Ada", "tags": ["x"]}),
    "null inside": (TypedDict("Null", {"name": str, "age": int | None}), {"name": "Ada", "age": None}),
}


@every
async def test_an_answer_of_any_shape_comes_through_every_wire(protocol: str, store: Path) -> None:
    kinds: dict[str, Any] = {
        name: types.new_class(f"Q{number}", (il.Question[type_],))
        for number, (name, (type_, _)) in enumerate(SHAPES.items())
    }

    @il.agent(asks=list(kinds.values()))
    async def wants(text: str, ctx: il.Context[Any, Any]) -> str:
        return json.dumps(await ctx.ask(kinds[text]()))

    async with mounted_ours(protocol, store, SETTINGS, wants) as (_, there):
        for name, (_, value) in SHAPES.items():
            run = await there.tell(name)
            question = await there.asked(run)
            try:
                await there.engine.questions.answer(question.id, value)
            except InvalidAnswer:  # it was asked for by a choice, or by a form in which null is what is left out
                assert protocol in ("editor", "mcp")
                members = value if isinstance(value, dict) else {"choice": {True: "yes", False: "no"}.get(value, value)}
                await there.engine.questions.answer(question.id, {k: v for k, v in members.items() if v is not None})
            ended = await there.end(run)
            assert ended.status is il.Status.SUCCEEDED, (name, ended.error)
            assert json.loads(ended.output["text"]) == value, name


@every
@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_that_says_more_than_its_choice_comes_through_every_wire(
    protocol: str, store: Path, approved: bool
) -> None:
    async with mounted_ours(protocol, store, SETTINGS, careful) as (_, there):
        run = await there.tell("buy")
        question = await there.asked(run)
        assert choices(question) is not None
        with pytest.raises(InvalidAnswer):
            await there.engine.questions.answer(question.id, {"approved": approved, "reason": 7})
        answer = {"approved": approved, "reason": "too expensive"}
        line = answer_from(question.answer_schema, question.options, f"{'yes' if approved else 'no'}, too expensive")
        assert line == answer, "as one types it at the command line"
        await there.engine.questions.answer(question.id, answer)
        ended = await there.end(run)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        assert json.loads(ended.output["text"]) == answer


async def answer_there(server: Server, text: str) -> None:
    (run,) = await server.engine.runs.search(RunFilter())
    (question,) = (await server.engine.runs.get(run.id)).questions
    await server.engine.questions.answer(question.id, {"text": text})


@every
async def test_a_question_that_is_answered_elsewhere_is_withdrawn_here_and_the_run_goes_on(
    protocol: str, store: Path
) -> None:
    async with mounted_ours(protocol, store) as (server, there):
        run = await there.tell("ask")
        question = await there.asked(run)
        await answer_there(server, "from elsewhere")
        assert (await there.end(run)).output == {"text": "you said: from elsewhere"}
        (withdrawn,) = await there.bodies(run, QuestionWithdrawn)
        assert withdrawn.question == question.id
        assert (await there.engine.runs.get(run.id)).questions == []


@pytest.mark.parametrize("protocol", ["connect", "cap"])
async def test_a_run_that_was_set_aside_with_a_question_looks_whether_it_is_still_asked(
    protocol: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounted_run, "LOOK_EVERY", 2.0)
    async with mounted_ours(protocol, store, QUICK) as (server, there):
        run = await there.tell("ask")
        await there.asked(run)
        await parked(there.engine, run.id)
        await answer_there(server, "from elsewhere")
        assert (await there.end(run)).output == {"text": "you said: from elsewhere"}
        assert len(await there.bodies(run, QuestionWithdrawn)) == 1
