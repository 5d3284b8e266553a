"""The tables of parity of this protocol.

`parts` translates content, `skills` agents, `projection` a run's log, and `task_states` states, each with the facts
that the wire has no place for.
"""

from __future__ import annotations

from ..parity import Carried

DOOR: dict[str, Carried] = {
    "list": Carried("skills of the card, and `/skills`"),
    "run": Carried("a task, or a message and its reply; one message has at most `doors.peer.max_msg_bytes`"),
    "stream": Carried("artifact events that append"),
    "structured_in": Carried("a data part"),
    "structured_out": Carried("a data part of the artifact; fragments of it in artifact events"),
    "files_in": Carried("file parts: the wire has addresses, so whoever gives a file offers it somewhere"),
    "data_in": Carried("data parts"),
    "files_out": Carried("file parts of artifacts and messages; what has no address is offered at `/peer/files`"),
    "data_out": Carried("data parts of artifacts and messages"),
    "threads": Carried("`context_id`"),
    "choose": Carried("`input_required` with a `question` that has `options` and `answer_schema`, after a message"),
    "form": Carried("`input_required` with a `question` that has `answer_schema`, after a message"),
    "ask": Carried("the same"),
    "cancel": Carried("`:cancel`, by way of `cancelling`"),
    "error_code": Carried("`error_info.code` beside `error`"),
    "error_transient": Carried("`error_info.transient` beside `error`"),
    "error_details": Carried("`error_info.details` beside `error`, where the frame is not larger than the peer takes"),
    "metadata": Carried("`metadata` of the task or the message"),
    "trace": Carried("headers of the request; `metadata` of a frame"),
}
"""The features of the engine on their way to a client, and back."""

MOUNT: dict[str, Carried] = {
    "list": Carried("skills of the card; the node itself where it has none"),
    "run": Carried(
        "a task, or a message and its reply where the node takes no tasks; up to `max_msg_bytes` of its card, or 1 MiB"
    ),
    "stream": Carried("artifact events that append"),
    "structured_in": Carried("a data part, where the skill tells its schemas"),
    "structured_out": Carried("a data part, where the skill tells its schemas"),
    "files_in": Carried("file parts; what has no address is offered at this server's `/peer/files`"),
    "data_in": Carried("data parts"),
    "files_out": Carried("file parts of the artifact"),
    "data_out": Carried("data parts of the artifact"),
    "threads": Carried("`context_id`"),
    "choose": Carried("`input_required` with a `question` that has `options`; else in words"),
    "form": Carried("`input_required` with a `question` that has `answer_schema`; else in words"),
    "ask": Carried("`input_required`, after a message"),
    "cancel": Carried("`:cancel`"),
    "error_code": Carried("`error_info.code` beside `error`"),
    "error_transient": Carried("`error_info.transient` beside `error`"),
    "error_details": Carried("`error_info.details` beside `error`"),
    "metadata": Carried("`metadata` of the task"),
    "trace": Carried("headers of the request; `metadata` of a frame"),
}
"""The features of the engine on their way to a mounted agent, and back."""
