"""Translates messages and results of runs between the model and the wire. Pure: nothing is fetched or opened.

Attachments of an error are lost: an `error_response` has none.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ...model import json_values, trace_context
from ...model.card import AgentCard
from ...model.content import DataPart, Message, Part, Role, TextPart
from ...model.error_numbers import ErrorNumber, error_from_number, number_of
from ...model.errors import ErrorInfo, InvalidRequest
from ...model.events import Form, Said
from ...model.prompt_input import add_data_parts
from ...model.question_forms import parse_answer
from ...model.run import Question, Run
from ...model.status import Status
from ...model.team.attachments import PythonObject, attachment_of, part_of, text_and_attached
from . import wire

EXTRA = "cap"
"""The member of metadata for members of the wire that have no place of their own."""
# -- messages -------------------------------------------------------------------------------------------------


def text_of(message: wire.AnyMessage) -> str:
    match message:
        case wire.Message(content=text) | wire.DelegationNotice(context_summary=text):
            return text
        case wire.OversightInquiry(inquiry=text) | wire.ErrorResponse(error_message=text):
            return text


def model_message(message: wire.AnyMessage, role: Role = "user") -> Message:
    """Returns a wire message as a message of the model, with all its attachments and metadata. The first part is always
    the text."""
    attached = [] if isinstance(message, wire.ErrorResponse) else message.attachments or []
    metadata = dict(message.metadata or {})
    if isinstance(message, wire.ErrorResponse):
        metadata["error_code"] = message.error_code
    if message.extra:
        metadata[EXTRA] = dict(message.extra)
    return Message(
        role, [TextPart(text_of(message)), *map(part_of, attached)], sender=message.sender_id, metadata=metadata
    )


def wire_message(
    form: Form, task: str, sender: str, recipient: str, message: Message, *, time: int, number: int | None = None
) -> wire.AnyMessage:
    """Returns a message between two participants as its wire type. `number` is the code of an error."""
    text, attached = text_and_attached(message)
    metadata = dict(message.metadata)
    extra = metadata.pop(EXTRA, None)
    told: dict[str, Any] = {
        "task_id": task,
        "sender_id": sender,
        "recipient_id": recipient,
        "timestamp": wire.timestamp(time),
        "metadata": metadata or None,
        "extra": extra if isinstance(extra, dict) else {},
    }
    match form:
        case "error":
            return wire.ErrorResponse(error_code=int(number or ErrorNumber.FAILED), error_message=text, **told)
        case "delegation":
            return wire.DelegationNotice(context_summary=text, attachments=list(map(attachment_of, attached)), **told)
        case "inquiry":
            return wire.OversightInquiry(inquiry=text, attachments=list(map(attachment_of, attached)), **told)
        case "message":
            return wire.Message(content=text, attachments=list(map(attachment_of, attached)), **told)


def said(body: Said, time: int, task: str | None = None) -> wire.AnyMessage:
    """Returns a message from the log of a team's run. `time` is that of the event, `task` the reader's name for the
    task."""
    number = number_of(ErrorInfo(body.code or "", "", details=body.message.metadata.get("details"))).value
    return wire_message(
        body.form, task or body.task, body.sender, body.recipient, body.message, time=body.time or time,
        number=number if body.form == "error" else None,
    )  # fmt: skip


def error_response(error: ErrorInfo, *, task: str, sender: str, recipient: str, time: int) -> wire.ErrorResponse:
    """Returns an error, with its own code and all other known facts in the metadata."""
    return wire.ErrorResponse(
        task_id=task, sender_id=sender, recipient_id=recipient, error_code=int(number_of(error)),
        error_message=error.message, timestamp=wire.timestamp(time), metadata=_own(error),
    )  # fmt: skip


def _own(error: ErrorInfo) -> dict[str, Any]:
    """Returns the members of an error that the protocol does not have. `transient` is always there, because the number
    alone may suggest otherwise."""
    told: dict[str, Any] = {"code": error.code, "transient": error.transient}
    return told if error.details is None else {**told, "details": error.details}


def error_in(message: wire.ErrorResponse) -> ErrorInfo:
    """Returns the error of a response: by its number, and by its own code where the sender gives one."""
    return error_told(message.error_code, message.error_message, message.metadata or {})


def error_told(number: int, message: str, told: dict[str, Any]) -> ErrorInfo:
    """Returns the error of a response. `told` is the object with the sender's own members."""
    found = error_from_number(number, message)
    code, transient = told.get("code"), told.get("transient")
    return ErrorInfo(
        code if isinstance(code, str) and code else found.code, found.message,
        transient if isinstance(transient, bool) else found.transient, told.get("details"),
    )  # fmt: skip


# -- the request in a notice ----------------------------------------------------------------------------------

CONTROLS = ("input", "config", "version", "stream", "thread", *trace_context.NAMES)
"""Members of a notice's metadata that say how to run the agent, and in which trace, and are no metadata of the run."""


METADATA = "interlingua/metadata"
"""In the metadata of a notice: metadata of the run, for names that say something else there."""


def metadata_of(notice: wire.DelegationNotice) -> dict[str, Any]:
    """Returns the metadata of a run: the notice's, without the members that have another meaning, and the added
    ones."""
    told = notice.metadata or {}
    named = told.get(METADATA, {})
    if not isinstance(named, dict):
        raise InvalidRequest(f"/metadata/{METADATA} is an object: metadata of the run", path="/metadata")
    return {name: value for name, value in told.items() if name not in (*CONTROLS, METADATA)} | named


def input_of(notice: wire.DelegationNotice, card: AgentCard) -> dict[str, Any]:
    """Returns the input of an agent: the summary as its text, and all else from `metadata.input` and from attached
    objects. An agent that takes no text takes the only attached object."""
    given = (notice.metadata or {}).get("input", {})
    if not isinstance(given, dict):
        raise InvalidRequest("/metadata/input is an object: the input of the agent", path="/metadata/input")
    if card.input_text is not None:
        attached = [part_of(one) for one in notice.attachments or []]
        return add_data_parts(card, {card.input_text: notice.context_summary, **given}, attached)
    objects = [one.object for one in notice.attachments or [] if isinstance(one, PythonObject)]
    if not given and len(objects) == 1 and isinstance(objects[0], dict):
        return dict(objects[0])
    return dict(given)


# -- questions and answers ------------------------------------------------------------------------------------


def asked(question: Question) -> dict[str, Any]:
    """Returns the metadata of a message that asks a question."""
    told: dict[str, Any] = {
        "question": question.id,
        "question_type": question.type,
        "payload": question.payload,
        "answer_schema": question.answer_schema,
    }
    if question.options:
        told["options"] = msgspec.to_builtins(question.options)
    if question.deadline is not None:
        told["deadline"] = wire.timestamp(question.deadline)
    return told


def answer_in(message: wire.AnyMessage, question: Question, *, review: bool) -> Any:
    """Returns the answer in a message: `metadata.answer` unchanged, or the meaning of its words where a word is enough.

    On a review only `metadata.verdict` decides: words are an inquiry of the overseer, and no approval.
    """
    told = message.metadata or {}
    if review:
        verdict = told.get("verdict", told.get("answer"))
        if verdict is not None:
            return {**_attached(message), **verdict} if isinstance(verdict, dict) else verdict
        hash_ = question.payload.get("result_hash") if isinstance(question.payload, dict) else None
        return {"decision": "inquire", "inquiry": text_of(message), "result_hash": hash_, **_attached(message)}
    if "answer" in told:
        return told["answer"]
    return parse_answer(question, text_of(message))


def _attached(message: wire.AnyMessage) -> dict[str, Any]:
    """Returns the attachments of a verdict, as its member."""
    attached = text_and_attached(model_message(message))[1]
    return {"attachments": msgspec.to_builtins(attached)} if attached else {}


def answer_text(value: Any) -> str:
    """Returns an answer in words."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return json_values.encode(value).decode()


# -- output ---------------------------------------------------------------------------------------------------


def output_parts(output: Any, text_field: str | None) -> list[Part]:
    """Returns the parts of an output: its text, and the whole as an object where there is more than the text."""
    text = output.get(text_field or "text") if isinstance(output, dict) else output
    if isinstance(text, str):
        alone = not isinstance(output, dict) or len(output) == 1
        return [TextPart(text)] if alone else [TextPart(text), DataPart(output)]
    return [TextPart("")] if output is None else [TextPart(""), DataPart(output)]


# -- tasks ----------------------------------------------------------------------------------------------------


def task_view(run: Run, task: str, agent: str, label: str | None) -> dict[str, Any]:
    """Returns a task, or a part of one, as it stands."""
    told: dict[str, Any] = {
        "task_id": task,
        "run_id": run.id,
        "agent": agent,
        "status": run.status.value,
        "created_at": wire.timestamp(run.created_at),
        "updated_at": wire.timestamp(run.updated_at),
    }
    if label is not None and label != task:
        told["label"] = label  # the name that all others use
    if run.metadata:
        told["metadata"] = run.metadata
    if run.blocked is not None:
        told["blocked"] = {"reason": run.blocked.reason, "message": run.blocked.message}
    return {**told, **outcome(run.status, run.output, run.error)}


def outcome(status: Status, output: Any, error: ErrorInfo | None) -> dict[str, Any]:
    """Returns how a run ended, as members of its task; nothing while it goes on."""
    if status is Status.SUCCEEDED:
        return {"output": output}
    if error is None:
        return {}
    told: dict[str, Any] = {"error_code": int(number_of(error)), "error_message": error.message, **_own(error)}
    return {"error": told}


# -- names of tasks -------------------------------------------------------------------------------------------


def renamed(label: str, whole: str, name: str) -> str:
    """Returns the part `label` of the task `whole`, for a reader that calls the task `name`: T7.1 of T7 is T1.1 for a
    reader that calls T7 T1."""
    return name + label.removeprefix(whole) if label == whole or label.startswith(f"{whole}.") else label


_BELOW = re.compile(r"(?P<name>.+?)(?P<below>(?:\.[1-9][0-9]{0,17})+)", re.DOTALL)


def readings(task: str) -> list[tuple[str, str]]:
    """Returns the possible readings of an id: the name of a whole task and the path below it, the longest name
    first."""
    found = [(task, "")]
    match = _BELOW.fullmatch(task)
    if match is not None:
        steps = match["below"].split(".")[1:]
        for count in range(1, len(steps) + 1):
            below = "." + ".".join(steps[-count:])
            found.append((task.removesuffix(below), below))
    return found
