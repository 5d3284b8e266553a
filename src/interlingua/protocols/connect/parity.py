"""The tables of parity: what the door and the mount of this protocol carry, and where on its wire."""

from __future__ import annotations

from ..parity import Carried

DOOR: dict[str, Carried] = {
    "list": Carried("`/agents/search` and each descriptor"),
    "run": Carried("a run, on its thread's path where it has one"),
    "stream": Carried("`custom` updates, one per fragment; `values` updates with the newest whole"),
    "structured_in": Carried("`input`"),
    "structured_out": Carried("`values` of the result; fragments of it in `custom` updates"),
    "files_in": Carried("blocks of an `input` that is a list, as the protocol writes the content of a message"),
    "data_in": Carried("members of `input`; or blocks, as for files"),
    "files_out": Carried("blocks of `messages` beside the result; `custom` updates as they come"),
    "data_out": Carried("the same; members of `values` where the agent gives them as such"),
    "threads": Carried("a thread"),
    "choose": Carried("an interrupt with `options` and `answer_schema` beside its payload"),
    "form": Carried("an interrupt with `answer_schema` beside its payload"),
    "ask": Carried("an interrupt whose `answer_schema` is a text"),
    "cancel": Carried("`cancel` of the run, which ends as an error whose `code` is `cancelled`"),
    "error_code": Carried("`code` beside `errcode`, and `description`"),
    "error_transient": Carried("`transient` beside `errcode`"),
    "error_details": Carried("`details` beside `errcode`"),
    "metadata": Carried("`metadata` of the run"),
    "trace": Carried("headers of the request"),
}
"""The features of the engine on their way to a client, and back."""

MOUNT: dict[str, Carried] = {
    "list": Carried("`/agents/search` and each descriptor"),
    "run": Carried("a run, on the thread's path where it has one"),
    "stream": Carried("`values` events, compared with what was shown; `custom` fragments of servers of ours"),
    "structured_in": Carried("`input`, as the descriptor describes it"),
    "structured_out": Carried("`values` of the result"),
    "files_in": Carried(
        "blocks of a message as `input` of a server of ours; else their names and addresses stand in the text",
        "Their content at other servers: `input` is the agent's own object, with no place for a file beside it.",
    ),
    "data_in": Carried("members of `input`, where the descriptor has them; else as files"),
    "files_out": Carried("blocks of `messages` beside the result"),
    "data_out": Carried("blocks of `messages` beside the result"),
    "threads": Carried("a thread named after ours, with its `values` as our state"),
    "choose": Carried("an interrupt whose `resume_payload` has a list of values"),
    "form": Carried("an interrupt with its `resume_payload`"),
    "ask": Carried("an interrupt whose `resume_payload` is a text"),
    "cancel": Carried("`cancel` of the run"),
    "error_code": Carried("`code` beside `errcode`, and `description`"),
    "error_transient": Carried("`transient` beside `errcode`"),
    "error_details": Carried("`details` beside `errcode`; of a server that is none of ours, `errcode` as well"),
    "metadata": Carried("`metadata` of the run"),
    "trace": Carried("headers of the request"),
}
"""The features of the engine on their way to a mounted agent, and back."""
