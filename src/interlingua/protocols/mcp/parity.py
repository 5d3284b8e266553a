"""The tables of parity: what the door and the mount of this protocol carry, and where on its wire."""

from __future__ import annotations

from ..parity import Carried

_FORM = "an elicitation; what has no field of its kind is JSON in a text, with `interlingua/answerSchema` in `_meta`"

DOOR: dict[str, Carried] = {
    "list": Carried("`agents/list`; each is a tool as well"),
    "run": Carried("`agents/run`, or `tools/call`"),
    "stream": Carried("`notifications/agents/run/progress`; a tool's text so far in `notifications/progress`"),
    "structured_in": Carried("`input`, or the tool's `arguments`"),
    "structured_out": Carried("`output`, or the tool's `structuredContent`"),
    "files_in": Carried("`_meta` of the request, `interlingua/parts`"),
    "data_in": Carried("members of `input` where the agent has them; else `_meta`, as for files"),
    "files_out": Carried("`_meta` of the result, `interlingua/parts`; the content blocks of a tool's result"),
    "data_out": Carried("members of `output`; else as for files"),
    "threads": Carried("`_meta` of the request, `interlingua/thread`"),
    "choose": Carried(
        "an elicitation whose `choice` has a list of values; what an answer says beside it is in fields that may be"
        " left empty, or all of it in the result's `_meta`, `interlingua/answer`"
    ),
    "form": Carried(_FORM),
    "ask": Carried("an elicitation whose only field is a text"),
    "cancel": Carried("`notifications/cancelled`; in the revision without sessions, leaving the request"),
    "error_code": Carried("`data.code` of the error, and its message; `_meta` of a tool's result, `interlingua/error`"),
    "error_transient": Carried("`data.transient` of the error; `_meta` of a tool's result, `interlingua/error`"),
    "error_details": Carried("`data.details` of the error; `_meta` of a tool's result, `interlingua/error`"),
    "metadata": Carried("`_meta` of the request: `interlingua/metadata`, and members that are nobody's"),
    "trace": Carried("`_meta` of the request, in the members that are reserved for it"),
}
"""The features of the engine on their way to a client, and back."""

MOUNT: dict[str, Carried] = {
    "list": Carried("`agents/list`; `0.0.0` is the version of agents whose server tells none"),
    "run": Carried("`agents/run`"),
    "stream": Carried("`notifications/agents/run/progress`"),
    "structured_in": Carried("`input`, as `inputSchema` describes it"),
    "structured_out": Carried("`output`, as `outputSchema` describes it"),
    "files_in": Carried("`_meta` of the request, `interlingua/parts`"),
    "data_in": Carried("members of `input` where `inputSchema` has them; else `_meta` `interlingua/parts`"),
    "files_out": Carried("`_meta` of the result, `interlingua/parts`"),
    "data_out": Carried("`_meta` of the result, `interlingua/parts`"),
    "threads": Carried("`_meta` of the request, `interlingua/thread`"),
    "choose": Carried(
        "an elicitation whose only field has a list of values; an answer that says more, to a server of ours, is whole"
        " in the result's `_meta`, `interlingua/answer`"
    ),
    "form": Carried(_FORM),
    "ask": Carried("an elicitation whose only field is a text"),
    "cancel": Carried("`notifications/cancelled`; the end of the request in the revision without sessions"),
    "error_code": Carried("`data.code` of the error, and its message"),
    "error_transient": Carried("`data.transient` of the error"),
    "error_details": Carried("`data.details` of the error; `data` and the number, of a server that is none of ours"),
    "metadata": Carried("`_meta` of the request, `interlingua/metadata`"),
    "trace": Carried("`_meta`, in the members that are reserved for it"),
}
"""The features of the engine on their way to a mounted agent, and back."""
