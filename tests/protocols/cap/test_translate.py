"""What travels: parts and attachments, messages, errors, answers, cards and manifests, and logs as conversations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.card import AgentCard, ErrorDefinition, QuestionType
from interlingua.model.content import Artifact, DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from interlingua.model.errors import ErrorInfo, InvalidRequest
from interlingua.model.events import (
    ArtifactAdded,
    Body,
    CancelRequested,
    Event,
    MessageReceived,
    MessageSent,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    RunCreated,
    RunFinished,
    RunRestarted,
    RunStarted,
    Said,
    Thought,
)
from interlingua.model.run import Answer, Option, Question, RunRequest
from interlingua.model.status import Status
from interlingua.model.team.attachments import (
    Attachment,
    File,
    PythonObject,
    ToolCallResult,
    attachment_of,
    part_of,
    read_attachment,
    text_and_attached,
    write_attachment,
)
from interlingua.model.team.manifest import Binding, Manifest, Options, Rule
from interlingua.model.team.oversight import verdict_schema
from interlingua.model.team.task_ids import is_task
from interlingua.protocols.cap import agent_manifest, translate, wire
from interlingua.protocols.cap.projection import Conversation, Update, View, id_of, place_of

NOON = 1_750_000_000_000_000

# -- attachments ----------------------------------------------------------------------------------------------

ATTACHMENTS: list[dict[str, Any]] = [
    {"type": "tool_call_result", "server_id": "DocsServer", "tool": "read_file", "result": "...project spec..."},
    {"type": "tool_call_result", "server_id": "D", "tool": "q", "result": {"a": [1, None]}, "unverified": True},
    {"type": "tool_call_result", "server_id": "D", "tool": "q", "result": None, "failed": True, "call": "c1"},
    {"type": "tool_call_result", "server_id": "D", "tool": "q", "result": 1, "cost": {"cents": 3}},
    {"type": "file", "path": "/srv/report.csv"},
    {"type": "file", "path": "/srv/a report (1) ä.csv"},
    {"type": "file", "path": "report.csv"},
    {"type": "file", "path": "C:\\reports\\a.csv"},
    {"type": "file", "path": "https://example.com/a.csv"},
    {"type": "file", "url": "https://example.com/a.csv"},
    {"type": "file", "url": "file:///srv/a.csv"},
    {"type": "file", "path": "file:///srv/a.csv"},
    {"type": "file", "path": "/srv/a.csv", "name": "a", "media_type": "text/csv", "size": 3, "sheet": 2},
    {"type": "file", "path": "/srv/a.csv", "size": "large"},
    {"type": "file", "path": "data:application/pdf;base64,AAH/"},
    {"type": "file", "path": "data:application/pdf;base64,AAH/", "media_type": "text/csv"},
    {"type": "file", "path": "data:text/plain;charset=utf-8;base64,aMOk", "name": "ha.txt"},
    {"type": "file", "path": "data:;base64,AAH/", "media_type": "text/plain; charset=latin-1"},
    {"type": "file", "path": "data:,a%20b"},
    {"type": "file", "path": "data:text/plain;base64,?"},
    {"type": "python_object", "object": {"insights": [1, 2], "figures": {}}},
    {"type": "python_object", "object": None, "name": "nothing"},
    {"type": "python_object", "object": [1], "class": "list"},
    {"type": "text_snippet", "text": "Client churn: ClientA & ClientB"},
    {"type": "text_snippet", "text": "", "language": "en"},
]


@pytest.mark.parametrize("told", ATTACHMENTS)
def test_an_attachment_comes_back_as_it_was_with_members_that_are_not_known(told: dict[str, Any]) -> None:
    part = part_of(read_attachment(told))
    assert write_attachment(attachment_of(part)) == told
    again = msgspec.json.decode(msgspec.json.encode(part), type=Part)  # as it stands in a log
    assert write_attachment(attachment_of(again)) == told


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(["name", "media_type", "title", "size", "call", "failed", "description", "meta", "cap"])
extras = st.dictionaries(known | st.text(), json_values, max_size=4)
filled = st.text(min_size=1).filter(lambda text: "\0" not in text)
attachments = st.one_of(
    st.fixed_dictionaries({"type": st.just("text_snippet"), "text": st.text()}),
    st.fixed_dictionaries({"type": st.just("python_object"), "object": json_values}),
    st.fixed_dictionaries(
        {"type": st.just("tool_call_result"), "server_id": filled, "tool": filled, "result": json_values}
    ),
    st.fixed_dictionaries({"type": st.just("file"), "path": filled}),
)


@given(attachments, extras)
def test_any_attachment_comes_back_as_it_was(told: dict[str, Any], extra: dict[str, Any]) -> None:
    whole = {**{name: value for name, value in extra.items() if name not in ("url", "unverified")}, **told}
    try:
        read = read_attachment(whole)
    except InvalidRequest:
        return  # it looks like a pickle
    part = msgspec.json.decode(msgspec.json.encode(part_of(read)), type=Part)
    assert write_attachment(attachment_of(part)) == whole


PARTS: list[Part] = [
    TextPart("a snippet"),
    DataPart({"a": 1}, "application/json", "a"),
    FilePart(url="file:///srv/a%20b.csv", name="a b"),
    FilePart(url="https://example.com/a", media_type="text/html", title="A", description="a page", size=12),
    FilePart(data=b"\x00\xff", media_type="image/png", name="dot.png"),
    FilePart(text="häh", media_type="text/plain"),
    FilePart(text="no type"),
    FilePart(data=b"odd type", media_type="text/plain; charset=latin-1"),
    FilePart(data=b""),
    ToolResultPart("read", {"text": "x"}, "Docs", "call-1"),
    ToolResultPart("read", "no", "Docs", failed=True, meta={"unverified": True}),
]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_comes_back_as_it_was(part: Part) -> None:
    told = write_attachment(attachment_of(part))
    assert part_of(read_attachment(told)) == part


def test_what_kind_of_attachment_each_part_is() -> None:
    kinds = [write_attachment(attachment_of(part))["type"] for part in PARTS]
    assert kinds == ["text_snippet", "python_object", *["file"] * 7, *["tool_call_result"] * 2]


def test_bytes_travel_as_a_data_address_in_the_member_that_the_standard_has() -> None:
    told = write_attachment(attachment_of(FilePart(data=b"hi", media_type="text/csv")))
    assert told["path"] == "data:text/csv;base64,aGk="
    assert part_of(read_attachment(told)) == FilePart(data=b"hi", media_type="text/csv")
    assert part_of(File(path="data:,hi")) == FilePart(url="data:,hi")  # not as we write it: it stays


def test_a_sender_cannot_say_that_a_result_is_verified() -> None:
    told = {"type": "tool_call_result", "server_id": "D", "tool": "t", "result": 1, "unverified": False}
    assert part_of(read_attachment(told)) == ToolResultPart("t", 1, "D")


def test_a_result_of_no_server_is_told_as_local() -> None:
    told = attachment_of(ToolResultPart("grep", "x"))
    assert isinstance(told, ToolCallResult)
    assert told.server_id == "local"


# -- messages -------------------------------------------------------------------------------------------------

ENVELOPE = {"task_id": "T1.1", "sender_id": "analyst-1#2", "recipient_id": "pm-1",
            "timestamp": "2025-06-15T15:06:40.000000Z"}  # fmt: skip
FORMS: dict[type, Any] = {
    wire.Message: "message",
    wire.DelegationNotice: "delegation",
    wire.OversightInquiry: "inquiry",
}
MESSAGES: list[dict[str, Any]] = [
    {"type": "message", **ENVELOPE, "content": "Should I go on?", "attachments": ATTACHMENTS},
    {"type": "message", **ENVELOPE, "content": "", "attachments": [], "metadata": {"final": True, "x": [1]}},
    {"type": "delegation_notice", **ENVELOPE, "context_summary": "Please do.", "attachments": ATTACHMENTS[:3]},
    {"type": "oversight_inquiry", **ENVELOPE, "inquiry": "Which source?", "attachments": [], "urgent": True},
    {"type": "message", **ENVELOPE, "content": "x", "attachments": [], "metadata": {"a": 1}, "thread": {"id": 3}},
]


@pytest.mark.parametrize("told", MESSAGES)
def test_a_message_comes_back_as_it_was_out_of_the_model(told: dict[str, Any]) -> None:
    given_ = wire.read(told)
    message = translate.model_message(given_, "agent")
    assert message.sender == "analyst-1#2"
    assert text_and_attached(message)[0] == translate.text_of(given_)
    form = FORMS[type(given_)]
    back = translate.wire_message(form, given_.task_id, given_.sender_id, given_.recipient_id, message, time=NOON)
    assert wire.write(back) == told


@pytest.mark.parametrize(
    ("form", "code", "kind", "number"),
    [
        ("message", None, "message", None),
        ("delegation", None, "delegation_notice", None),
        ("inquiry", None, "oversight_inquiry", None),
        ("error", "denied", "error_response", 403),
        ("error", "timed_out", "error_response", 504),
        ("error", "rejected", "error_response", 422),
        ("error", "an_agents_own", "error_response", 502),
    ],
)
def test_what_was_said_is_one_of_the_four_types(form: Any, code: str | None, kind: str, number: int | None) -> None:
    body = Said("T7.1", "pm-1", "analyst-1", form, Message("agent", [TextPart("well")]), code)
    told = wire.write(translate.said(body, NOON))
    assert (told["type"], told["task_id"], told.get("error_code")) == (kind, "T7.1", number)
    assert "well" in told.values()
    assert wire.read(told) is not None
    earlier = msgspec.structs.replace(body, time=NOON - 1)
    assert translate.said(earlier, NOON, "T1.1").task_id == "T1.1"
    assert translate.said(earlier, NOON).timestamp == wire.timestamp(NOON - 1)


def test_an_error_of_a_child_has_the_number_of_the_childs_error() -> None:
    inner = {"error": {"code": "timed_out", "message": "MCP timeout."}}
    body = Said("T1", "a", "b", "error", Message("agent", [TextPart("x")], metadata={"details": inner}), "child_failed")
    told = translate.said(body, NOON)
    assert isinstance(told, wire.ErrorResponse)
    assert told.error_code == 504


@pytest.mark.parametrize(
    "error",
    [
        ErrorInfo("denied", "no"),
        ErrorInfo("timed_out", "late", True),
        ErrorInfo("busy", "later", True, {"seconds": 3}),
        ErrorInfo("over_budget", "none left"),
    ],
)
def test_an_error_comes_back_with_its_own_code_and_details(error: ErrorInfo) -> None:
    told = translate.error_response(error, task="T1", sender="a", recipient="b", time=NOON)
    assert translate.error_in(told) == error


@pytest.mark.parametrize(
    ("number", "code", "transient"),
    [(403, "denied", False), (504, "timed_out", True), (123, "run_failed", False), (418, "invalid_request", False)],
)
def test_an_error_of_somebody_else_is_known_by_its_number(number: int, code: str, transient: bool) -> None:
    told = wire.ErrorResponse(
        task_id="T1", sender_id="a", recipient_id="b", error_code=number, error_message="MCP timeout."
    )
    assert translate.error_in(told) == ErrorInfo(code, "MCP timeout.", transient)
    assert translate.model_message(told).metadata == {"error_code": number}


# -- notices and answers --------------------------------------------------------------------------------------


def notice(summary: str = "do it", *attachments: Attachment, **metadata: Any) -> wire.DelegationNotice:
    return wire.DelegationNotice(
        task_id="T1", sender_id="user", recipient_id="a", context_summary=summary, attachments=list(attachments),
        metadata=metadata or None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("told", "text", "input_"),
    [
        (notice(), "text", {"text": "do it"}),
        (notice(), "message", {"message": "do it"}),
        (notice(input={"a": 1}), "text", {"text": "do it", "a": 1}),
        (notice(input={"text": "other"}), "text", {"text": "other"}),
        (notice("x", PythonObject(object={"a": 1})), "text", {"text": "x"}),
        (notice("x", PythonObject(object={"a": 1})), None, {"a": 1}),
        (notice("x", PythonObject(object={"a": 1}), input={"b": 2}), None, {"b": 2}),
        (notice("x", PythonObject(object=1)), None, {}),
        (notice("x", *[PythonObject(object={"a": 1})] * 2), None, {}),
    ],
)
def test_the_input_of_an_agent_is_read_out_of_a_notice(told: Any, text: str | None, input_: dict[str, Any]) -> None:
    assert translate.input_of(told, AgentCard("a", input_text=text)) == input_


def test_an_input_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        translate.input_of(notice(input=[1]), AgentCard("a"))
    assert refused.value.path == "/metadata/input"


def question(schema: dict[str, Any], options: list[Option] | None = None, payload: Any = None) -> Question:
    return Question("q1", "r1", "ask", payload, schema, NOON, "Well?", options or [])


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
YES = {"type": "object", "properties": {"approved": {"type": "boolean"}, "reason": {}}, "required": ["approved"]}
CHOICE = {"type": "object", "properties": {"choice": {"enum": ["eu", "us"]}}, "required": ["choice"]}
OPTIONS = [Option("eu", "Europe"), Option("us", "The States")]


@pytest.mark.parametrize(
    ("asked", "words", "metadata", "answer"),
    [
        (question(TEXT), "Regional breakdown.", {}, {"text": "Regional breakdown."}),
        (question(TEXT), "12", {}, {"text": "12"}),
        (question(YES), "yes", {}, {"approved": True}),
        (question(YES), "No", {}, {"approved": False}),
        (question(YES), "whatever", {"answer": {"approved": True}}, {"approved": True}),
        (question(CHOICE, OPTIONS), "Europe", {}, {"choice": "eu"}),
        (question(CHOICE, OPTIONS), "us", {}, {"choice": "us"}),
        (question(CHOICE, OPTIONS), '{"choice": "eu"}', {}, {"choice": "eu"}),
        (question({"type": "integer"}), "3", {}, 3),
        (question(TEXT), "x", {"answer": None}, None),
    ],
)
def test_an_answer_is_read_out_of_words_or_given_as_it_is(
    asked: Question, words: str, metadata: dict[str, Any], answer: Any
) -> None:
    told = wire.Message(task_id="T1", sender_id="user", recipient_id="a", content=words, metadata=metadata)
    assert translate.answer_in(told, asked, review=False) == answer


@pytest.mark.parametrize("words", ["approve", "Approved.", "yes", "ok", '{"decision":"approve","result_hash":"h1"}'])
def test_words_never_approve_a_result(words: str) -> None:
    asked = question(verdict_schema("h1"), payload={"result_hash": "h1"})
    told = wire.Message(task_id="T1", sender_id="user", recipient_id="a", content=words)
    assert translate.answer_in(told, asked, review=True) == {
        "decision": "inquire", "inquiry": words, "result_hash": "h1",
    }  # fmt: skip


def test_a_verdict_is_a_field_of_its_own() -> None:
    asked = question(verdict_schema("h1"), payload={"result_hash": "h1"})
    verdict = {"decision": "approve", "result_hash": "h0"}
    told = wire.Message(
        task_id="T1", sender_id="user", recipient_id="a", content="Fine.", metadata={"verdict": verdict}
    )
    assert translate.answer_in(told, asked, review=True) == verdict  # and the schema refuses it: another hash
    inquiry = wire.OversightInquiry(task_id="T1", sender_id="user", recipient_id="a", inquiry="Which source?")
    assert translate.answer_in(inquiry, asked, review=True)["inquiry"] == "Which source?"


@pytest.mark.parametrize(
    ("value", "text"), [({"text": "x"}, "x"), ("x", "x"), ({"approved": True}, '{"approved":true}'), (3, "3")]
)
def test_an_answer_is_told_as_somebody_would_say_it(value: Any, text: str) -> None:
    assert translate.answer_text(value) == text


@pytest.mark.parametrize(
    ("output", "text", "parts"),
    [
        ({"text": "x"}, "text", [TextPart("x")]),
        ({"text": "x", "n": 1}, "text", [TextPart("x"), DataPart({"text": "x", "n": 1})]),
        ({"reply": "x"}, "reply", [TextPart("x")]),
        ({"value": 3}, None, [TextPart(""), DataPart({"value": 3})]),
        ({}, "text", [TextPart(""), DataPart({})]),
        (None, None, [TextPart("")]),
    ],
)
def test_an_output_is_a_text_and_an_object_where_there_is_more(output: Any, text: Any, parts: list[Part]) -> None:
    assert translate.output_parts(output, text) == parts


# -- names of tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "readings"),
    [
        ("T1", [("T1", "")]),
        ("T1.2", [("T1.2", ""), ("T1", ".2")]),
        ("T1.2.3", [("T1.2.3", ""), ("T1.2", ".3"), ("T1", ".2.3")]),
        ("order 7", [("order 7", "")]),
        ("a.0", [("a.0", "")]),
        ("v1.0.2", [("v1.0.2", ""), ("v1.0", ".2")]),
        (".1", [(".1", "")]),
    ],
)
def test_an_id_is_a_name_and_perhaps_a_part_of_what_has_that_name(task: str, readings: list[tuple[str, str]]) -> None:
    assert translate.readings(task) == readings


@pytest.mark.parametrize(
    ("label", "name"), [("T7", "T1"), ("T7.1", "T1.1"), ("T7.1.3", "T1.1.3"), ("T70", "T70"), ("T70.1", "T70.1")]
)
def test_a_reader_finds_its_own_name_for_a_task_in_all_of_its_parts(label: str, name: str) -> None:
    assert translate.renamed(label, "T7", "T1") == name


@given(st.text(min_size=1, max_size=20), st.lists(st.integers(1, 99), max_size=3))
def test_every_part_of_every_name_can_be_read_back(name: str, steps: list[int]) -> None:
    below = "".join(f".{step}" for step in steps)
    assert (name, below) in translate.readings(name + below)
    assert is_task("T1" + below)


# -- cards and manifests --------------------------------------------------------------------------------------

CARD = AgentCard(
    "mail.composer", "1.2.0", "Writes mail.", TEXT, TEXT, input_text="text", output_text="text", streams=True,
    questions=[QuestionType("approval", {}, YES, "May it?")], errors=[ErrorDefinition("busy", "later", True)],
)  # fmt: skip
ENTRY = Manifest(
    "pm-1", "You are the manager. The password is swordfish.", ("analyst-1",), {"analyst-1": Rule("when it is data")},
    "user", (Binding("Docs", ("read",), ("read_file",)),), Options(handler="secret.py:pm", version="3"),
)  # fmt: skip


def test_a_card_comes_back_out_of_its_manifest() -> None:
    told = agent_manifest.manifest(CARD, "mail-_2e_composer")
    assert {"id", "system_prompt", "allowed_agents", "delegate_rules", "mcp_bindings"} <= told.keys()
    assert told["system_prompt"] == "Writes mail."
    assert agent_manifest.card_of(told) == CARD


def test_a_manifest_of_a_team_says_who_works_with_whom_and_not_how_they_think() -> None:
    told = agent_manifest.manifest(CARD, "pm-1", ENTRY)
    assert told["allowed_agents"] == ["analyst-1"]
    assert told["delegate_rules"] == {"analyst-1": {"when_to_delegate": "when it is data"}}
    assert told["overseer"] == "user"
    assert told["mcp_bindings"][0]["allowed_tools"] == ["read_file"]
    assert "swordfish" not in str(told)
    assert "secret.py" not in str(told)
    assert "swordfish" in agent_manifest.manifest(CARD, "pm-1", ENTRY, prompt=True)["system_prompt"]


def test_an_agent_of_somebody_else_takes_and_gives_text() -> None:
    told = {"id": "analyst-1", "system_prompt": "You analyse.", "allowed_agents": [], "delegate_rules": {},
            "mcp_bindings": [], "interlingua": {"name": 3}}  # fmt: skip
    card = agent_manifest.card_of(told)
    assert (card.name, card.input_text, card.output_text) == ("analyst-1", "text", "text")
    assert card.description == "You analyse."
    with pytest.raises(InvalidRequest):
        agent_manifest.card_of({"id": "not an id"})


# -- a log as a conversation ----------------------------------------------------------------------------------


def log(*bodies: Body) -> list[Event]:
    return [Event("r1", seq, NOON + seq, b"", body) for seq, body in enumerate(bodies, 1)]


def updates(view: View, *bodies: Body) -> list[Update]:
    conversation = Conversation("r1", view)
    return [update for event in log(*bodies) for update in conversation.feed(event)]


def told(found: list[Update]) -> list[tuple[str, Any]]:
    """Each update by its kind and what it says in short."""
    short = {
        "message": lambda d: (d["type"], d["sender_id"], d["recipient_id"]),
        "status": lambda d: d["status"],
        "delta": lambda d: d["delta"],
        "reset": lambda d: d["output"],
        "activity": lambda d: d["kind"],
    }
    return [(update.kind, short[update.kind](update.data)) for update in found]


PLAIN = View("T1", "words", caller="me", output_text="text", input_text="text")
CREATED = RunCreated(RunRequest("words", input={"text": "hello"}), "")
STARTED = RunStarted("w", 1)


def test_a_run_of_an_agent_without_a_team_is_a_conversation_too() -> None:
    asked = question(TEXT)
    found = updates(
        PLAIN, CREATED, STARTED, Thought("hm"), OutputDelta({"text": "he"}), QuestionAsked(asked),
        QuestionAnswered("q1", Answer({"text": "go on"})), MessageReceived(Message("user", [TextPart("quick")])),
        MessageSent(Message("agent", [TextPart("soon")])), OutputDelta({"text": "llo"}),
        ArtifactAdded(Artifact("a", [FilePart(url="https://x.y/z")])),
        RunFinished(Status.SUCCEEDED, {"text": "hello"}),
    )  # fmt: skip
    assert told(found) == [
        ("message", ("delegation_notice", "orchestrator", "words")),
        ("status", "pending"),
        ("status", "running"),
        ("activity", "thought"),
        ("delta", {"text": "he"}),
        ("message", ("message", "words", "user")),
        ("status", "waiting"),
        ("message", ("message", "user", "words")),
        ("status", "running"),
        ("message", ("message", "user", "words")),
        ("message", ("message", "words", "user")),
        ("delta", {"text": "llo"}),
        ("message", ("message", "words", "orchestrator")),
        ("status", "succeeded"),
    ]
    messages = [update.data for update in found if update.kind == "message"]
    assert [wire.write(wire.read(one)) for one in messages] == messages
    assert messages[0]["context_summary"] == "hello"
    assert messages[1]["metadata"]["answer_schema"] == TEXT
    assert messages[2]["metadata"] == {"question": "q1", "answer": {"text": "go on"}}
    assert messages[4]["metadata"] == {"reply_expected": False}
    assert messages[5]["metadata"] == {"final": True}
    assert messages[5]["attachments"] == [{"type": "file", "path": "https://x.y/z"}]
    assert found[-1].data["output"] == {"text": "hello"}


def test_a_question_for_somebody_else_tells_nothing_but_that_it_is_asked() -> None:
    asked = msgspec.structs.replace(question(TEXT, payload={"secret": 1}), answerer="somebody")
    (message, _) = updates(PLAIN, CREATED, QuestionAsked(asked))[2:]
    assert message.data["metadata"] == {"question": "q1"}
    assert "secret" not in str(message.data)


@pytest.mark.parametrize(
    ("end", "number"),
    [
        (RunFinished(Status.FAILED, error=ErrorInfo("busy", "later", True)), 502),
        (RunFinished(Status.CANCELLED, error=ErrorInfo("cancelled", "stop")), 499),
        (RunFinished(Status.TIMED_OUT, error=ErrorInfo("timed_out", "late")), 504),
        (RunFinished(Status.FAILED), 502),
    ],
)
def test_a_run_that_did_not_succeed_ends_with_an_error_response(end: RunFinished, number: int) -> None:
    found = updates(PLAIN, CREATED, STARTED, CancelRequested(), end)
    assert found[-2].data["type"] == "error_response"
    assert found[-2].data["error_code"] == number
    assert found[-1].data["final"] is True
    assert [d for kind, d in told(found) if kind == "status"] == [
        "pending", "running", "cancelling", end.status.value,
    ]  # fmt: skip


def test_what_no_longer_stands_is_taken_back() -> None:
    *before, restarted = log(CREATED, OutputDelta({"text": "a"}), OutputDelta({"text": "b"}), RunRestarted(2))
    conversation = Conversation("r1", PLAIN)
    for event in before:
        conversation.feed(event)
    assert told(conversation.feed(restarted, output={"text": "a"})) == [("reset", {"text": "a"})]
    assert told(conversation.feed(restarted)) == [("reset", {})]


def saying(task: str, sender: str, to: str, text: str, form: Any = "message", **more: Any) -> Said:
    metadata = more.pop("metadata", {})
    return Said(task, sender, to, form, Message("agent", [TextPart(text)], metadata=metadata), **more)


def test_the_conversation_of_a_team_is_what_its_members_said_under_the_readers_names() -> None:
    view = View("mine", "pm-1", team=True, caller="me")
    found = updates(
        view, CREATED, STARTED, saying("T7", "orchestrator", "pm-1", "do", "delegation"),
        saying("T7.1", "pm-1", "analyst-1", "please", "delegation"),
        saying("T7.1.1", "qa-1", "analyst-1", "secret", "inquiry", held=True),
        saying("T7.1", "analyst-1", "pm-1", "done", metadata={"final": True}),
        saying("T7", "pm-1", "user", "fine"),
        saying("T7", "pm-1", "orchestrator", "report", metadata={"final": True}),
        RunFinished(Status.SUCCEEDED, {"text": "report"}),
    )  # fmt: skip
    messages = [update.data for update in found if update.kind == "message"]
    assert [(one["task_id"], one["sender_id"], one["recipient_id"]) for one in messages] == [
        ("mine", "orchestrator", "pm-1"),
        ("mine.1", "pm-1", "analyst-1"),
        ("mine.1", "analyst-1", "pm-1"),
        ("mine", "pm-1", "user"),
        ("mine", "pm-1", "orchestrator"),
    ]
    assert "secret" not in str(messages)


def test_of_a_part_of_a_task_only_what_belongs_to_it_is_told() -> None:
    view = View("T7", "pm-1", "T7", ".1", team=True)
    found = updates(
        view, CREATED, saying("T7", "orchestrator", "pm-1", "do", "delegation"),
        saying("T7.1", "pm-1", "analyst-1", "a", "delegation"), saying("T7.10", "pm-1", "analyst-1#2", "b"),
        saying("T7.1.1", "analyst-1", "qa-1", "c"), OutputDelta({"text": "x"}), RunFinished(Status.SUCCEEDED, {}),
    )  # fmt: skip
    assert [update.data["task_id"] for update in found] == ["T7.1", "T7.1.1"]


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (RunFinished(Status.SUCCEEDED, {"text": "x"}), "message"),
        (RunFinished(Status.CANCELLED, error=ErrorInfo("cancelled", "stop")), "error_response"),
    ],
)
def test_a_team_whose_entry_agent_did_not_have_the_last_word_is_spoken_for(end: RunFinished, kind: str) -> None:
    view = View("T1", "pm-1", team=True, output_text="text")
    found = updates(view, CREATED, saying("T7", "orchestrator", "pm-1", "do", "delegation"), end)
    assert found[-2].data["type"] == kind
    assert (found[-2].data["sender_id"], found[-2].data["recipient_id"]) == ("pm-1", "orchestrator")


def test_ids_grow_and_can_be_read_back() -> None:
    found = updates(PLAIN, CREATED, STARTED, QuestionAsked(question(TEXT)), RunFinished(Status.SUCCEEDED, {"text": ""}))
    assert [update.id for update in found] == ["1.0", "1", "2", "3.0", "3", "4.0", "4"]
    places = [update.place for update in found]
    assert places == sorted(places)
    assert [place_of(update.id) for update in found] == places


@given(st.integers(0, 10**15 - 1), st.integers(0, 999_999))
def test_every_id_means_one_place(seq: int, number: int) -> None:
    assert place_of(id_of((seq, number))) == (seq, number)


@pytest.mark.parametrize("id_", ["", "x", "-1", "1.", "1.x", "1.2.3", "9" * 16, "1.1234567", "²"])
def test_an_id_of_another_stream_is_none_of_ours(id_: str) -> None:
    assert place_of(id_) is None
