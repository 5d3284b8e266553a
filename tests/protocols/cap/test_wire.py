"""Messages are read strictly and kept whole: the example message by message, then what is refused, and where."""

from __future__ import annotations

import base64
import collections
import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.error_numbers import CODES_BY_NUMBER, NUMBERS_BY_CODE, ErrorNumber, error_from_number, number_of
from interlingua.model.errors import ErrorInfo, Invalid, InvalidRequest, TooLarge, all_errors
from interlingua.model.schemas import Validator
from interlingua.model.team.attachments import (
    File,
    PythonObject,
    TextSnippet,
    ToolCallResult,
    read_attachment,
    write_attachment,
)  # fmt: skip
from interlingua.model.team.manifest import manifest_problems
from interlingua.model.team.task_ids import child_of, is_task, lineage, next_child, parent_of
from interlingua.protocols.cap.wire import (
    MANIFEST_SCHEMA,
    DelegationNotice,
    ErrorResponse,
    Message,
    OversightInquiry,
    parse,
    read,
    time_of,
    timestamp,
    write,
)
from tests.kit.manifests import ANALYST, PM, QA, changed


def said(task: str, sender: str, recipient: str, **members: Any) -> dict[str, Any]:
    return {"type": "message", "task_id": task, "sender_id": sender, "recipient_id": recipient, **members}


SPEC = {"type": "tool_call_result", "server_id": "DocsServer", "tool": "read_file", "result": "the specification"}
SALES = {
    "type": "tool_call_result",
    "server_id": "DataServer",
    "tool": "query_data",
    "result": {"range": "Q4", "filters": {"clients": ["ClientA", "ClientB"], "all_products": True}},
}
SNIPPET = {"type": "text_snippet", "text": "Two clients left; promotions in December."}
REPORT = {"type": "file", "path": "/data/report.md"}
FINDINGS = {"type": "python_object", "object": {"insights": ["Europe fell"], "figures": {"europe": 12.5, "asia": None}}}

FLOW: dict[str, dict[str, Any]] = {
    "start": {
        "type": "delegation_notice", "task_id": "T1", "sender_id": "orchestrator", "recipient_id": "pm-1",
        "context_summary": "The user wants to know how sales went last quarter", "attachments": [],
    },
    "pm asks user": said("T1", "pm-1", "user", content="By region, or over all?", attachments=[SPEC]),
    "user replies": said("T1", "user", "pm-1", content="By region."),
    "pm delegates": {
        "type": "delegation_notice", "task_id": "T1.1", "sender_id": "pm-1", "recipient_id": "analyst-1",
        "context_summary": "Sales of last quarter by region: what did losing two clients do, which products moved?",
        "attachments": [SALES, SPEC, SNIPPET],
    },
    "analyst asks pm": said("T1.1", "analyst-1", "pm-1", content="Some sellers pause. Go on?", attachments=[SNIPPET]),
    "pm clarifies": said("T1.1", "pm-1", "analyst-1", content="Yes, and compare with last year."),
    "analyst delegates": {
        "type": "delegation_notice", "task_id": "T1.1.1", "sender_id": "analyst-1", "recipient_id": "qa-1",
        "context_summary": "Analysed; please verify.", "attachments": [REPORT, FINDINGS],
    },
    "qa inquires": {
        "type": "oversight_inquiry", "task_id": "T1.1.1", "sender_id": "qa-1", "recipient_id": "analyst-1",
        "inquiry": "Europe seems low: which table, which filters?", "attachments": [REPORT],
    },
    "analyst responds": said("T1.1.1", "analyst-1", "qa-1", content="The clean table, closed sales only."),
    "qa approves": said("T1.1.1", "qa-1", "pm-1", content="Verified."),
    "final report": said("T1", "pm-1", "orchestrator", content="Here is the verified report."),
    "error": {
        "type": "error_response", "task_id": "T1.1", "sender_id": "agent-x", "recipient_id": "agent-y",
        "error_code": 504, "error_message": "The MCP server did not answer in time.",
    },
}  # fmt: skip


def refused(value: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        read(value)
    return caught.value


# --- the example --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOW)
def test_a_message_of_the_example_is_read_and_written_as_it_was(name: str) -> None:
    assert write(read(FLOW[name])) == FLOW[name]


def test_the_request_of_the_user_comes_from_the_orchestrator_without_attachments() -> None:
    assert read(FLOW["start"]) == DelegationNotice(
        task_id="T1", sender_id="orchestrator", recipient_id="pm-1",
        context_summary=FLOW["start"]["context_summary"], attachments=[],
    )  # fmt: skip


def test_a_message_to_the_user_carries_the_result_of_a_tool() -> None:
    message = read(FLOW["pm asks user"])
    assert isinstance(message, Message)
    assert (message.sender_id, message.recipient_id, message.content) == ("pm-1", "user", "By region, or over all?")
    assert message.attachments == [ToolCallResult(server_id="DocsServer", tool="read_file", result="the specification")]


def test_attachments_can_be_left_out_and_stay_left_out() -> None:
    message = read(FLOW["user replies"])
    assert isinstance(message, Message)
    assert message.attachments is None
    assert "attachments" not in write(message)


def test_a_notice_carries_results_as_objects_and_as_text_and_a_snippet() -> None:
    notice = read(FLOW["pm delegates"])
    assert isinstance(notice, DelegationNotice)
    assert notice.attachments == [
        ToolCallResult(server_id="DataServer", tool="query_data", result=SALES["result"]),
        ToolCallResult(server_id="DocsServer", tool="read_file", result="the specification"),
        TextSnippet(text=SNIPPET["text"]),
    ]


def test_a_notice_carries_a_file_and_an_object() -> None:
    notice = read(FLOW["analyst delegates"])
    assert isinstance(notice, DelegationNotice)
    assert notice.attachments == [File(path="/data/report.md"), PythonObject(object=FINDINGS["object"])]


def test_an_inquiry_has_its_question_in_inquiry_and_may_have_attachments() -> None:
    inquiry = read(FLOW["qa inquires"])
    assert isinstance(inquiry, OversightInquiry)
    assert inquiry.inquiry == "Europe seems low: which table, which filters?"
    assert inquiry.attachments == [File(path="/data/report.md")]


def test_an_error_has_a_number_and_a_text() -> None:
    error = read(FLOW["error"])
    assert isinstance(error, ErrorResponse)
    assert (error.error_code, error.error_message) == (504, "The MCP server did not answer in time.")


# --- every message ------------------------------------------------------------------------------------------

SAYS = {"message": "content", "delegation_notice": "context_summary", "error_response": "error_message",
        "oversight_inquiry": "inquiry"}  # fmt: skip
ONE_OF_EACH = {value["type"]: value for value in FLOW.values()}


@pytest.mark.parametrize("name", ["type", "task_id", "sender_id", "recipient_id", "says"])
@pytest.mark.parametrize("kind", SAYS)
def test_a_member_of_the_envelope_is_a_text_and_there(kind: str, name: str) -> None:
    name = SAYS[kind] if name == "says" else name
    value = copy.deepcopy(ONE_OF_EACH[kind])
    del value[name]
    assert refused(value).path == f"/{name}"
    for wrong in (None, 5, True, ["T1"], {"id": "T1"}):
        assert refused({**value, name: wrong}).path == f"/{name}"


@pytest.mark.parametrize("code", [..., None, "504", 504.5, 504.0, True, [504]], ids=str)
def test_an_error_code_is_a_whole_number(code: Any) -> None:
    value = {**FLOW["error"], "error_code": code}
    if code is ...:
        del value["error_code"]
    assert refused(value).path == "/error_code"


@pytest.mark.parametrize("kind", ["", "Message", "delegation", "approval"])
def test_an_unknown_type_of_message_is_refused(kind: str) -> None:
    error = refused({**FLOW["user replies"], "type": kind})
    assert error.path == "/type"
    assert "message, delegation_notice, error_response, oversight_inquiry" in error.message


@pytest.mark.parametrize("value", [None, [], "message", 5])
def test_a_message_is_an_object(value: Any) -> None:
    assert "is an object" in refused(value).message


@pytest.mark.parametrize("name", ["sender_id", "recipient_id"])
@pytest.mark.parametrize("id_", ["user", "orchestrator", "analyst-1", "analyst-1#2", "A_b-9"])
def test_participants_are_agents_instances_the_user_and_the_orchestrator(name: str, id_: str) -> None:
    assert write(read({**FLOW["user replies"], name: id_}))[name] == id_


@pytest.mark.parametrize("name", ["sender_id", "recipient_id"])
@pytest.mark.parametrize("id_", ["", "a b", "a#1", "a#", "#2", "a/b", "a\n", "ä", "x" * 10_000 + "!"])
def test_what_cannot_be_a_participant_is_refused(name: str, id_: str) -> None:
    error = refused({**FLOW["user replies"], name: id_})
    assert error.path == f"/{name}"
    assert len(error.message) < 250


@pytest.mark.parametrize("value", FLOW.values(), ids=FLOW)
def test_unknown_members_metadata_and_timestamp_are_kept(value: dict[str, Any]) -> None:
    more = {"metadata": {"rule": "analyst-1"}, "timestamp": "2025-06-01T12:00:00.25Z", "x-trace": {"id": [1, None]}}
    message = read({**value, **more})
    assert message.metadata == {"rule": "analyst-1"}
    assert message.extra["x-trace"] == {"id": [1, None]}
    assert write(message) == {**value, **more}


@pytest.mark.parametrize("value", [None, [], "text", 5])
def test_metadata_is_an_object(value: Any) -> None:
    assert refused({**FLOW["user replies"], "metadata": value}).path == "/metadata"


@pytest.mark.parametrize("value", FLOW.values(), ids=FLOW)
def test_a_message_can_be_stamped_by_whoever_takes_it_in(value: dict[str, Any]) -> None:
    message = read(value)
    assert message.time is None
    message.timestamp = timestamp(1_748_779_200_250_000)
    assert write(message)["timestamp"] == "2025-06-01T12:00:00.250000Z"
    assert message.time == 1_748_779_200_250_000


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2025-06-01", "2025-06-01T12:00:00", "2025-13-01T12:00:00Z", "2025-06-01T12:00Z", "1748779200"],
)
def test_a_timestamp_without_date_time_and_offset_is_refused(text: str) -> None:
    assert refused({**FLOW["user replies"], "timestamp": text}).path == "/timestamp"


def test_a_timestamp_is_a_text() -> None:
    assert refused({**FLOW["user replies"], "timestamp": 1_748_779_200}).path == "/timestamp"


def test_a_timestamp_may_have_any_offset() -> None:
    assert time_of("2025-06-01T14:00:00+02:00") == time_of("2025-06-01T12:00:00Z") == 1_748_779_200_000_000


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_a_time_is_written_so_that_it_can_be_read(moment: datetime) -> None:
    spent = moment - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (spent.days * 86400 + spent.seconds) * 1_000_000 + spent.microseconds
    assert time_of(timestamp(micros)) == micros


def test_a_message_is_read_out_of_json_text() -> None:
    assert parse(
        b'{"type":"message","task_id":"T1","sender_id":"user","recipient_id":"a","content":"\\u00e4"}'
    ) == Message(task_id="T1", sender_id="user", recipient_id="a", content="ä")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the message is empty"),
        (b"{", "the message is cut off at byte 1"),
        (
            b'{"type":"message",}',
            "the message is not JSON: expecting property name enclosed in double quotes at byte 18",
        ),
        (b"\xff", "the message is not JSON: expecting value at byte 0"),
        (b"[" * 100_000, "the message is nested too deeply"),
        (b'{"type":"message","x":NaN}', "NaN is no number of JSON; send null, or text"),
    ],
)
def test_text_that_is_no_json_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.message == says


def test_a_bottomless_message_is_refused() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    with pytest.raises(TooLarge):
        read({**FLOW["user replies"], "more": deep})


# --- attachments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["message", "delegation_notice", "oversight_inquiry"])
def test_all_kinds_of_attachments_go_with_every_message_that_has_some(kind: str) -> None:
    value = {**ONE_OF_EACH[kind], "attachments": [SPEC, SALES, REPORT, FINDINGS, SNIPPET]}
    assert write(read(value)) == value


@pytest.mark.parametrize("value", [None, {}, "file", 5])
def test_attachments_are_a_list(value: Any) -> None:
    assert refused({**FLOW["user replies"], "attachments": value}).path == "/attachments"


@pytest.mark.parametrize(
    ("attachment", "path"),
    [
        (5, ""),
        (None, ""),
        ({}, "/type"),
        ({"type": "image"}, "/type"),
        ({"type": ["file"]}, "/type"),
        ({**SPEC, "server_id": 5}, "/server_id"),
        ({**SPEC, "server_id": ""}, "/server_id"),
        ({"type": "tool_call_result", "server_id": "S", "result": 1}, "/tool"),
        ({"type": "tool_call_result", "server_id": "S", "tool": "t"}, "/result"),
        ({"type": "file"}, "/path"),
        ({"type": "file", "path": ""}, "/path"),
        ({"type": "file", "path": 5}, "/path"),
        ({"type": "file", "path": "/a\0b"}, "/path"),
        ({"type": "file", "path": "/a", "url": "https://h/a"}, "/path"),
        ({"type": "file", "url": "report.csv"}, "/url"),
        ({"type": "file", "url": "https://h/a b"}, "/url"),
        ({"type": "python_object"}, "/object"),
        ({"type": "text_snippet"}, "/text"),
        ({"type": "text_snippet", "text": ["a"]}, "/text"),
    ],
    ids=str,
)
def test_a_bad_attachment_is_refused_with_its_path(attachment: Any, path: str) -> None:
    value = {**FLOW["user replies"], "attachments": [SNIPPET, attachment]}
    assert refused(value).path == f"/attachments/1{path}"


def test_more_attachments_than_anybody_needs_are_refused() -> None:
    assert refused({**FLOW["user replies"], "attachments": [SNIPPET] * 1001}).path == "/attachments"


@pytest.mark.parametrize("attachment", [SPEC, REPORT, FINDINGS, SNIPPET], ids=lambda value: value["type"])
def test_unknown_members_of_an_attachment_are_kept(attachment: dict[str, Any]) -> None:
    value = {**attachment, "note": {"seen": True}}
    assert write_attachment(read_attachment(value)) == value


def test_a_file_is_given_by_its_path_or_by_a_url_in_either_member() -> None:
    local, remote, elsewhere = (
        read_attachment({"type": "file", **member})
        for member in ({"path": "/data/a.csv"}, {"url": "https://h/a.csv"}, {"path": "https://h/a.csv"})
    )
    assert isinstance(local, File)
    assert isinstance(remote, File)
    assert isinstance(elsewhere, File)
    assert (local.address, local.is_url) == ("/data/a.csv", False)
    assert (remote.address, remote.is_url) == (elsewhere.address, elsewhere.is_url) == ("https://h/a.csv", True)
    assert write_attachment(elsewhere) == {"type": "file", "path": "https://h/a.csv"}


@pytest.mark.parametrize("result", ["text", {"rows": [1, 2]}, [1], 5, 1.5, False, None, ""], ids=str)
def test_a_result_and_an_object_are_any_json_value_and_arrive_unchanged(result: Any) -> None:
    for value in ({**SPEC, "result": result}, {"type": "python_object", "object": result}):
        assert write_attachment(read_attachment(value)) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_is_not_taken_for_a_pickle(value: Any) -> None:
    attachment = {"type": "python_object", "object": value}
    assert write_attachment(read_attachment(attachment)) == attachment


OBJECT = collections.OrderedDict(a=[1, "two"])
PICKLES = {f"protocol {number}": pickle.dumps(OBJECT, number) for number in range(pickle.HIGHEST_PROTOCOL + 1)}
WRITTEN: dict[str, Callable[[bytes], str]] = {
    "base64": lambda body: base64.b64encode(body).decode(),
    "base64 without padding": lambda body: base64.b64encode(body).decode().rstrip("="),
    "base64 in lines": lambda body: base64.encodebytes(body).decode(),
    "base64 for addresses": lambda body: base64.urlsafe_b64encode(body).decode(),
    "data address": lambda body: f"data:application/octet-stream;base64,{base64.b64encode(body).decode()}",
    "hex": lambda body: body.hex(),
    "characters": lambda body: body.decode("latin-1"),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("protocol", PICKLES)
def test_a_pickle_is_refused_however_it_is_written(protocol: str, how: str) -> None:
    written = WRITTEN[how](PICKLES[protocol])
    error = refused({**FLOW["user replies"], "attachments": [{"type": "python_object", "object": written}]})
    assert error.path == "/attachments/0/object"
    assert "is a pickle" in error.message


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_a_plain_value_is_refused_too(protocol: int) -> None:
    written = base64.b64encode(pickle.dumps(5, protocol)).decode()
    error = refused({**FLOW["user replies"], "attachments": [{"type": "python_object", "object": written}]})
    assert error.path == "/attachments/0/object"


def test_a_pickle_is_refused_wherever_it_is_in_an_object() -> None:
    hidden = {"a": [{"b": base64.b64encode(pickle.dumps({"x": 1})).decode()}]}
    error = refused({**FLOW["user replies"], "attachments": [{"type": "python_object", "object": hidden}]})
    assert error.path == "/attachments/0/object/a/0/b"


@pytest.mark.parametrize("how", ["pickle", "base64+cloudpickle", "application/x-python-pickle", "dill"])
def test_an_object_that_is_said_to_be_pickled_is_refused(how: str) -> None:
    attachment = {"type": "python_object", "object": "abc", "encoding": how}
    assert refused({**FLOW["user replies"], "attachments": [attachment]}).path == "/attachments/0/encoding"


@pytest.mark.parametrize(
    "text", ["absolute.", "N.", ".", "aqua.", "I1\n.", "gift", "deadbeef", "Paris\n.", "c", "80", "("]
)
def test_words_are_not_taken_for_pickles(text: str) -> None:
    attachment = {"type": "python_object", "object": text}
    assert write_attachment(read_attachment(attachment)) == attachment


# --- manifests ----------------------------------------------------------------------------------------------


def fits_schema(value: Any) -> bool:
    try:
        Validator(MANIFEST_SCHEMA, what="manifest").check(value, Invalid)
    except Invalid:
        return False
    return True


def test_the_schema_of_manifests_has_its_id() -> None:
    assert MANIFEST_SCHEMA["$id"] == "https://example.com/schemas/agent.schema.json"


@pytest.mark.parametrize("value", [PM, ANALYST, QA], ids=lambda value: value["id"])
def test_the_manifests_of_the_example_fit_the_schema(value: dict[str, Any]) -> None:
    assert fits_schema(value)


PATHS = ["/id", "/system_prompt", "/allowed_agents", "/allowed_agents/0", "/delegate_rules", "/overseer",
         "/delegate_rules/analyst-1", "/delegate_rules/analyst-1/when_to_delegate", "/delegate_rules/any one",
         "/mcp_bindings", "/mcp_bindings/0", "/mcp_bindings/0/server_id", "/mcp_bindings/0/description",
         "/mcp_bindings/0/scopes", "/mcp_bindings/0/scopes/0", "/mcp_bindings/1/allowed_tools",
         "/mcp_bindings/1/allowed_tools/0", "/more", "/mcp_bindings/0/more"]  # fmt: skip
PIECES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 5, 1.5, "", "text", [], ["a"], [None], {}, {"a": 1}, {"a": {}}, [{}], [[]]]
)


@given(st.lists(st.tuples(st.sampled_from(PATHS), PIECES | st.just(...)), min_size=1, max_size=2))
def test_what_reads_manifests_and_the_schema_agree_on_what_is_one(changes: list[tuple[str, Any]]) -> None:
    value = PM
    for path, piece in changes:
        try:
            value = changed(path, piece, of=value)
        except (KeyError, IndexError, TypeError):  # the change before took that place away
            continue
    assert (manifest_problems(value) == []) == fits_schema(value)


# --- error codes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("denied", 403),
        ("timed_out", 504),
        ("question_expired", 504),
        ("unavailable", 503),
        ("invalid_request", 400),
        ("rejected", 422),
        ("over_budget", 429),
        ("cancelled", 499),
        ("internal", 500),
        ("agent_crashed", 502),
        ("an error of some agent", 502),
    ],
)
def test_an_error_has_a_standard_number(code: str, number: int) -> None:
    assert number_of(ErrorInfo(code, "x")) == number


def test_every_error_of_the_tree_has_a_number() -> None:
    assert {error.code for error in all_errors()} <= set(NUMBERS_BY_CODE)


@pytest.mark.parametrize("number", list(ErrorNumber), ids=lambda code: code.name)
def test_every_number_leads_back_to_an_error_with_that_number(number: ErrorNumber) -> None:
    error = error_from_number(number, "why")
    assert (number_of(error), error.message) == (number, "why")
    assert error.transient is (number in (503, 504))
    assert CODES_BY_NUMBER[number] == error.code


def test_an_error_that_came_up_from_a_child_has_the_number_of_the_child_s() -> None:
    inner = {"code": "child_failed", "message": "", "details": {"error": {"code": "timed_out", "message": "late"}}}
    assert number_of(ErrorInfo("child_failed", "x", details={"run": "r", "error": inner})) == ErrorNumber.TIMEOUT
    assert number_of(ErrorInfo("child_failed", "x")) == ErrorNumber.FAILED


@pytest.mark.parametrize(
    ("number", "code"), [(418, "invalid_request"), (599, "run_failed"), (0, "run_failed"), (-1, "run_failed")]
)
def test_an_unknown_number_is_an_error_all_the_same(number: int, code: str) -> None:
    assert error_from_number(number, "x") == ErrorInfo(code, "x")


# --- task ids -----------------------------------------------------------------------------------------------


def test_the_id_of_a_subtask_extends_that_of_its_parent() -> None:
    assert child_of("T1", 1) == "T1.1"
    assert child_of("T1.1", 1) == "T1.1.1"
    assert [parent_of(id_) for id_ in ("T1.1.1", "T1.1", "T1")] == ["T1.1", "T1", None]
    assert lineage("T1.2.3") == ["T1", "T1.2", "T1.2.3"]


def test_the_next_subtask_gets_a_number_that_no_other_had() -> None:
    existing = ["T1", "T1.1", "T1.9", "T1.10", "T1.10.44", "T12.99", "T2", "other", "T1.x"]
    assert next_child("T1", existing) == "T1.11"
    assert next_child("T1.10", existing) == "T1.10.45"
    assert next_child("T1.1", existing) == "T1.1.1"
    assert next_child(None, existing) == "T13"
    assert next_child(None, []) == "T1"


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_parents_and_children_are_each_other_s(numbers: list[int]) -> None:
    id_ = f"T{'.'.join(map(str, numbers))}"
    child = next_child(id_, [child_of(id_, number) for number in numbers])
    assert parent_of(child) == id_
    assert child == child_of(id_, max(numbers) + 1)
    assert lineage(child)[:-1] == lineage(id_)


@pytest.mark.parametrize("id_", ["", "T", "T0", "T01", "1", "t1", "T1.", "T1.0", "T1..1", "T1.1\n", "T1.a", "T²"])
def test_what_is_no_id_of_a_task_has_neither_parent_nor_children(id_: str) -> None:
    assert not is_task(id_)
    for function in (parent_of, lineage, lambda id_: child_of(id_, 1), lambda id_: next_child(id_, [])):
        with pytest.raises(InvalidRequest):
            function(id_)


@pytest.mark.parametrize("number", [0, -1])
def test_subtasks_are_counted_from_one(number: int) -> None:
    with pytest.raises(InvalidRequest):
        child_of("T1", number)


def test_a_message_may_have_a_task_id_of_another_s_making() -> None:
    value = {**FLOW["user replies"], "task_id": "ticket/2025-17"}
    assert write(read(value)) == value
    assert refused({**value, "task_id": ""}).path == "/task_id"
