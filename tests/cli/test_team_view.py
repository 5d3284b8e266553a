"""What is shown of a team at work, and what typed lines mean: events and questions in, lines and answers out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.cli.commands.team.input import Answering, Command, Plain, Tell, Unclear, read
from interlingua.engine.agents.question_types import answer_schema, question_codec
from interlingua.engine.teams.error_policy import Escalation
from interlingua.engine.teams.oversight import Review
from interlingua.model.content import Artifact, DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from interlingua.model.errors import InvalidAnswer
from interlingua.model.events import (
    ArtifactAdded,
    Body,
    CancelRequested,
    ChildCalled,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageSent,
    RunCreated,
    RunFinished,
    Said,
    Thought,
    ToolCall,
    ToolRefused,
    Warned,
)
from interlingua.model.run import Option, Question, RunRequest
from interlingua.model.status import Status
from interlingua.model.team.authority import Authority
from interlingua.model.team.oversight import Assignment, Proposal, Result, verdict_schema
from interlingua.terminal.events.conversation import Conversation

ROOT, PM, ANALYST = "root-run", "pm-run", "analyst-run"


class Log:
    """Events of several runs, as they come, and the lines that are made of them."""

    def __init__(self) -> None:
        self.talk = Conversation(ROOT)
        self._seq = 0

    def tell(self, body: Body, run: str = ROOT) -> list[str]:
        self._seq += 1
        event = Event(run, self._seq, 1_700_000_000_000_000 + self._seq, b"", body)
        return ["  " * line.depth + line.text.plain for line in self.talk.lines(event)]

    def create(self, run: str, task: str, agent: str) -> None:
        authority = Authority("sales", agent, (), {}, {}, 1, 1, ("orchestrator", agent), task=task, root=ROOT)
        assert self.tell(RunCreated(RunRequest(f"sales/{agent}", authority=authority), ""), run) == []


@pytest.fixture
def log() -> Log:
    made = Log()
    made.create(ROOT, "", "orchestrator")
    made.create(PM, "T1", "pm-1")
    made.create(ANALYST, "T1.1", "analyst-1")
    return made


def said(
    text: str, *parts: Part, task: str = "T1", sender: str = "pm-1", to: str = "user", form: Any = "message",
    metadata: dict[str, Any] | None = None, **more: Any,
) -> Said:  # fmt: skip
    return Said(task, sender, to, form, Message("agent", [TextPart(text), *parts], metadata=metadata or {}), **more)


# -- what is said ---------------------------------------------------------------------------------------------


def test_a_message_is_shown_with_its_task_both_sides_and_its_kind(log: Log) -> None:
    assert log.tell(said("Which regions?\nAll of them?")) == [
        "T1 pm-1 → user  message", "  Which regions?", "  All of them?"
    ]  # fmt: skip
    assert log.talk.label == "T1"


def test_what_is_said_further_down_the_tree_is_indented(log: Log) -> None:
    notice = said(
        "Analyse it.", task="T1.1", to="analyst-1", form="delegation",
        metadata={"rule": "When data must be analysed.", "reason": "It is about numbers."},
    )  # fmt: skip
    assert log.tell(notice) == [
        "  T1.1 pm-1 → analyst-1  delegation",
        "    Analyse it.",
        "    rule: When data must be analysed.",
        "    reason: It is about numbers.",
    ]
    assert log.tell(said("Go.", task="T1.1.1"))[0].startswith("    T1.1.1 ")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (said("?", metadata={"question": "q1"}), "question"),
        (said("!", sender="user", to="pm-1", metadata={"question": "q1"}), "answer"),
        (said("Done.", to="orchestrator", metadata={"final": True}), "result"),
        (said("Why?", sender="qa-1", to="analyst-1", form="inquiry", held=True), "inquiry  in review"),
        (said("Fine.", sender="qa-1", metadata={"verdict": "approve"}), "message (approve)"),
        (said("Too slow.", form="error", code="timed_out"), "error 504 timed_out"),
        (said("Odd.", form="error", code="own_code"), "error 502 own_code"),
    ],
)
def test_the_kind_of_what_is_said_is_told(log: Log, body: Said, word: str) -> None:
    assert log.tell(body)[0].endswith(f"→ {body.recipient}  {word}")


def test_attachments_take_one_line_each(log: Log) -> None:
    lines = log.tell(
        said(
            "See.",
            ToolResultPart("query_data", {"total": 1}, server="DataServer"),
            ToolResultPart("read_file", "x" * 500, server="DocsServer", meta={"unverified": True}),
            ToolResultPart("guess", "no\nsuch\nthing", failed=True),
            FilePart(url="reports/q4.md"),
            FilePart(name="a.csv", text="1,2"),
            DataPart({"insights": [1, 2]}),
            TextPart("Client churn:\ntwo of them."),
        )
    )
    assert lines[2:] == [
        '  + DataServer.query_data: {"total":1}',
        f"  + DocsServer.read_file: {'x' * 119}…  unverified",
        "  + guess failed: no such thing",
        "  + file reports/q4.md",
        "  + file a.csv (3 bytes)",
        '  + object {"insights":[1,2]}',
        "  + text Client churn: two of them.",
    ]


def test_a_message_without_text_shows_what_is_attached(log: Log) -> None:
    body = Said("T1", "pm-1", "user", "message", Message("agent", [DataPart({"a": 1})]))
    assert log.tell(body) == ["T1 pm-1 → user  message", '  + object {"a":1}']


def test_a_long_message_is_cut_and_says_so(log: Log) -> None:
    lines = log.tell(said("\n".join(str(number) for number in range(40))))
    assert len(lines) == 1 + 12 + 1
    assert lines[-1] == "  … 28 more lines"


def test_nothing_that_is_said_can_drive_the_terminal(log: Log) -> None:
    nasty = "a\x1b[31mb\x07"
    bodies: list[tuple[Body, str]] = [
        (said(nasty, TextPart(nasty), ToolResultPart(nasty, nasty, server=nasty), sender=nasty, to=nasty), ROOT),
        (said(nasty, form="error", code=nasty), ROOT),
        (said(nasty, metadata={"rule": nasty, "reason": nasty, "verdict": nasty}), ROOT),
        (DelegationRefused(nasty, nasty, nasty), PM),
        (ToolRefused(nasty, nasty, nasty, nasty), PM),
        (ErrorHandled("k", nasty, nasty, 500, "escalate", nasty), PM),
        (ToolCall("t", title=nasty, status="completed", output=nasty), PM),
        (Thought(nasty), PM),
        (Warned(nasty), PM),
        (ArtifactAdded(Artifact("a", [], name=nasty)), PM),
        (CancelRequested(reason=nasty), ROOT),
    ]
    for body, run in bodies:
        lines = log.tell(body, run)
        assert lines, body
        assert not any("\x1b" in line or "\x07" in line for line in lines), body


def test_what_stands_on_two_logs_is_shown_once(log: Log) -> None:
    assert log.tell(said("Hello.", key="send:1"), PM)
    assert log.tell(said("Hello.", key="send:1", run=PM)) == []
    assert log.tell(said("Hello.", key="send:2", run=PM)), "saying it again is saying it again"
    assert log.tell(said("Hello.", key="send:1"), ANALYST), "another run has keys of its own"


def test_what_was_held_back_is_shown_when_it_was_said_and_not_again_when_it_is_released(log: Log) -> None:
    about = {"result_hash": "abc"}
    inquiry = said("Why?", task="T1.1", sender="qa-1", form="inquiry", metadata=about, key="r:1", held=True)
    assert log.tell(inquiry, ANALYST)
    released = msgspec.structs.replace(inquiry, held=False, time=1, run=PM, key="release:1")
    assert log.tell(released) == []
    of_another = said("Why?", task="T1.1", sender="qa-1", form="inquiry", metadata={"result_hash": "x"}, time=1)
    assert log.tell(of_another), "what was not seen before is shown"


def judge(log: Log, run: str, proposal: Proposal, task: str = "T1.1.1") -> list[str]:
    path = ("orchestrator", "pm-1", "analyst-1", "qa-1")
    authority = Authority("sales", "qa-1", (), {}, {}, 1, 1, path, task=task, root=ROOT)
    request = RunRequest("sales/qa-1/review", authority=authority, assignment=Assignment(True, review=proposal))
    return log.tell(RunCreated(request, ""), run)


def test_a_review_that_the_engine_asks_for_is_shown_as_it_goes_on(log: Log) -> None:
    """Before a result is approved, nothing of it is said on any log: it is read from the runs that judge."""
    first, second = Proposal("analyst-1", "abc", Result()), Proposal("analyst-1", "def", Result())
    asks = ["    T1.1.1 analyst-1 → qa-1  delegation  in review", "      Please review."]
    assert judge(log, "r1", first) == asks
    inquiry = {"decision": "inquire", "result_hash": "abc", "inquiry": "Which source?"}
    assert log.tell(RunFinished(Status.SUCCEEDED, inquiry), "r1") == [
        "    T1.1.1 qa-1 → analyst-1  inquiry  in review", "      Which source?"
    ]  # fmt: skip
    assert judge(log, "r2", second) == asks
    assert log.tell(RunFinished(Status.SUCCEEDED, {"decision": "approve", "result_hash": "def"}), "r2") == [
        "    T1.1.1 qa-1 → pm-1  message (approve)  in review", "      Approved."
    ]  # fmt: skip
    about = {"result_hash": "def"}
    asked = said("Have a look.", task="T1.1.1", sender="analyst-1", to="qa-1", form="delegation", metadata=about)
    assert log.tell(msgspec.structs.replace(asked, time=1)) == [], "what is told afterwards was shown"
    brought = said(
        "Approved.", TextPart("the result"), task="T1.1.1", sender="qa-1", to="pm-1", time=2,
        metadata={**about, "verdict": "approve", "final": True},
    )  # fmt: skip
    assert log.tell(brought)[0] == "    T1.1.1 qa-1 → pm-1  result (approve)"


def test_an_approval_of_another_result_is_shown_as_told_to_the_agent(log: Log) -> None:
    judge(log, "r1", Proposal("analyst-1", "abc", Result()))
    (head, _) = log.tell(RunFinished(Status.SUCCEEDED, {"decision": "approve", "result_hash": "x"}), "r1")
    assert head == "    T1.1.1 qa-1 → analyst-1  message (approve)  in review"


def test_a_review_that_an_agent_asks_for_itself_is_shown_as_it_says_so(log: Log) -> None:
    log.tell(ChildCalled("k", "r1", "sales/qa-1/review", "", proposal="abc"), ANALYST)
    assert judge(log, "r1", Proposal("analyst-1", "abc", Result())) == []
    assert log.tell(RunFinished(Status.SUCCEEDED, {"decision": "reject", "result_hash": "abc"}), "r1") == []


# -- what is done ---------------------------------------------------------------------------------------------


def test_refusals_are_shown_with_who_was_refused_and_why(log: Log) -> None:
    assert log.tell(DelegationRefused("stranger", "its allowed_agents are qa-1"), ANALYST) == [
        "  T1.1 analyst-1 ✗ refused to delegate to stranger: its allowed_agents are qa-1 (denied)"
    ]
    assert log.tell(ToolRefused("DataServer", "drop", "its tools are query_data"), PM) == [
        "T1 pm-1 ✗ refused DataServer.drop: its tools are query_data (denied)"
    ]


def test_a_refusal_is_not_shown_again_when_its_agent_is_told(log: Log) -> None:
    reason = "its tools are query_data"
    told = said(reason, sender="orchestrator", to="pm-1", form="error", code="denied")
    for _ in range(2):  # every time that it tries
        assert len(log.tell(ToolRefused("DataServer", "drop", reason), PM)) == 1
        assert log.tell(told) == []
    assert log.tell(told), "what was not shown is"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (ErrorHandled("k", "a-1", "unavailable", 503, "retry", delay=1.5), "retry in 1.5 s"),
        (ErrorHandled("k", "a-1", "unavailable", 503, "retry", attempt=2), "retry at once (step 2)"),
        (ErrorHandled("k", "a-1", "unavailable", 503, "reassign", "a-2"), "reassign to a-2"),
        (ErrorHandled("k", "a-1", "unavailable", 503, "escalate", "user"), "escalate to user"),
        (ErrorHandled("k", "a-1", "unavailable", 503, "fail"), "give up"),
    ],
)
def test_what_the_policy_decides_is_shown(log: Log, body: ErrorHandled, words: str) -> None:
    assert log.tell(body, PM) == [f"T1 pm-1 policy a-1 failed with 503 unavailable: {words}"]


def test_a_tool_call_is_shown_when_it_begins_and_when_it_ends(log: Log) -> None:
    name = "DataServer.query_data"
    assert log.tell(ToolCall("t", name, name, "other", "in_progress", {"range": "Q4"}), PM) == [
        f'T1 pm-1 ▸ {name} {{"range":"Q4"}}'
    ]
    assert log.tell(ToolCall("t", status="completed", output={"total": 7}), PM) == [f'T1 pm-1 ✓ {name} → {{"total":7}}']
    log.tell(ToolCall("t", name, name, "other", "in_progress"), ANALYST)
    (failed,) = log.tell(ToolCall("t", status="failed", output={"code": "timed_out"}), ANALYST)
    assert failed == f'  T1.1 analyst-1 ✗ {name} → {{"code":"timed_out"}}'


def test_what_the_team_shows_of_its_agents_is_not_shown_twice(log: Log) -> None:
    for body, copied in [
        (ToolCall("t", title="look", status="completed"), False), (Thought("hmm"), False), (Warned("careful"), False),
        (ArtifactAdded(Artifact("a", [TextPart("x")], name="report.md")), True),
        (MessageSent(Message("agent", [TextPart("by the way")], id="m1")), True),
    ]:  # fmt: skip
        shown = log.tell(body, PM)
        assert len(shown) == 1
        assert shown[0].startswith("T1 pm-1 ")
        assert log.tell(body, ROOT) == []
        assert not copied or log.tell(body, PM) == []


def test_that_the_task_is_cancelled_is_shown_once_and_not_run_by_run(log: Log) -> None:
    assert log.tell(CancelRequested(reason="Ctrl-C")) == ["cancelling: Ctrl-C …"]
    assert log.tell(CancelRequested(reason="its parent ended"), PM) == []


# -- what is typed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("yes please ", Plain("yes please")),
        ("", Plain("")),
        ("@analyst-1 hurry up ", Tell("analyst-1", "hurry up")),
        ("@analyst-1#2: look at @user", Tell("analyst-1#2", "look at @user")),
        ("/tree", Command("tree")),
        ("/cancel ", Command("cancel")),
        ("/help", Command("help")),
        (" @home", Plain("@home")),
        (" /etc/hosts", Plain("/etc/hosts")),
        ("mail a@b.example", Plain("mail a@b.example")),
    ],
)
def test_a_line_is_a_message_a_command_or_an_answer(line: str, meant: object) -> None:
    assert read(line) == meant


@pytest.mark.parametrize("line", ["@analyst-1", "@ hello", "/", "/etc/hosts", "/cancel it"])
def test_a_line_that_looks_like_a_command_is_never_taken_as_an_answer(line: str) -> None:
    assert isinstance(read(line), Unclear)


def question(schema: dict[str, Any], *options: Option) -> Question:
    return Question("q1", ROOT, "type", {}, schema, 0, options=list(options))


def answered(asked: Question, *lines: str) -> Any:
    answering = Answering(asked)
    for line in lines[:-1]:
        assert answering.take(line) is msgspec.UNSET
    return answering.take(lines[-1])


YES_NO = {
    "type": "object", "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}  # fmt: skip
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "count": {"type": "integer", "minimum": 1}, "note": {"type": "string"},
        "size": {"enum": ["s", "l"], "default": "s"},
    },
    "required": ["name", "count", "size"],
}  # fmt: skip
CHOICE = {"type": "object", "properties": {"choice": {"enum": ["r", "g"]}}, "required": ["choice"]}


def test_answers_are_typed_in_one_line() -> None:
    assert answered(question(YES_NO), "n too early") == {"approved": False, "reason": "too early"}
    assert answered(question(TEXT), "by region") == {"text": "by region"}
    assert answered(question({}), '{"a": 1}') == {"a": 1}
    red_or_green = question(CHOICE, Option("r", "Red"), Option("g", "Green"))
    assert Answering(red_or_green).choices == ["1) Red", "2) Green"]
    assert answered(red_or_green, "2") == {"choice": "g"}
    assert answered(red_or_green, "red") == {"choice": "r"}


def test_an_answer_of_several_members_is_asked_member_by_member_or_given_as_json() -> None:
    answering = Answering(question(ORDER))
    assert answering.prompt == "name (text): "
    assert answering.take("tea") is msgspec.UNSET
    assert answering.prompt == "count (whole number): "
    with pytest.raises(ValueError, match="'two' is not a whole number"):
        answering.take("two")
    with pytest.raises(ValueError, match="count needs a value"):
        answering.take("")
    assert answering.take("2") is msgspec.UNSET
    assert answering.prompt == "note (text, optional): "
    assert answering.take("") is msgspec.UNSET
    assert answering.take("") == {"name": "tea", "count": 2, "size": "s"}
    assert answered(question(ORDER), '{"name": "tea", "count": 1, "size": "l"}')["size"] == "l"


def test_an_answer_that_does_not_fit_as_a_whole_is_asked_again_from_its_beginning() -> None:
    answering = Answering(question(ORDER))
    for line in ("tea", "0", ""):
        answering.take(line)
    with pytest.raises(InvalidAnswer, match="/count"):
        answering.take("")
    assert answering.prompt == "name (text): "


@pytest.mark.parametrize(
    ("asked", "line"), [(question(YES_NO), "perhaps"), (question(CHOICE), "3"), (question({}), "{"), (question({}), "")]
)
def test_what_is_no_answer_is_refused(asked: Question, line: str) -> None:
    with pytest.raises((ValueError, InvalidAnswer)):
        Answering(asked).take(line)


def test_a_verdict_is_typed_as_a_word_and_counts_for_what_was_shown() -> None:
    review = question(verdict_schema("abc123"))
    assert "approve" in Answering(review).prompt
    assert answered(review, "approve") == {"decision": "approve", "result_hash": "abc123"}
    assert answered(review, "reject: wrong sum") == {
        "decision": "reject", "result_hash": "abc123", "reason": "wrong sum"
    }  # fmt: skip
    assert answered(review, "inquire which table?") == {
        "decision": "inquire", "result_hash": "abc123", "inquiry": "which table?"
    }  # fmt: skip


@pytest.mark.parametrize("line", ["looks good to me", "yes", "I approve", "inquire", ""])
def test_free_text_is_no_verdict(line: str) -> None:
    with pytest.raises(ValueError):
        Answering(question(verdict_schema("abc123"))).take(line)


@pytest.mark.parametrize(
    ("asks", "lines", "answer"),
    [
        (il.Confirm("Shall I?"), ["y"], {"approved": True}),
        (il.AskText("What?"), ["By region."], {"text": "By region."}),
        (il.Choose("Which?", [il.Option("r", "Red"), il.Option("g", "Green")]), ["green"], {"choice": "g"}),
        (Escalation("a-1", "T1", 503, "down"), ["retry", ""], {"decision": "retry"}),
        (Review("a-1", "abc", {}), ["approve"], {"decision": "approve", "result_hash": "abc"}),
    ],
)
def test_the_questions_of_the_library_and_of_teams_are_answered(asks: Any, lines: list[str], answer: object) -> None:
    schema = answer_schema(asks, question_codec(type(asks)))
    assert answered(question(schema, *asks.__options__()), *lines) == answer


def test_what_stands_before_an_answer_moves_no_cursor() -> None:
    """Members of an answer are named by whoever asks, which may be an agent far away."""
    members = {"\x1b[2Jcolour": {"type": "string"}, "size\x1b]0;you\x07": {"type": "integer"}}
    answering = Answering(question({"type": "object", "properties": members, "required": list(members)}))
    first = answering.prompt
    answering.take("red")
    for shown in (first, answering.prompt):
        assert shown.isprintable(), shown
    assert "colour" in first
