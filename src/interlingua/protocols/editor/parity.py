"""The tables of parity: what the door and the mount of this protocol carry, and where on its wire."""

from __future__ import annotations

from ..parity import Carried

_FORM = (
    "`elicitation/create`; what has no field of its kind is JSON in a text, with `interlingua/answerSchema` in `_meta`"
)

_CHOICE = (
    "`session/request_permission`; an answer that says more is whole in the response's `_meta`, `interlingua/answer`,"
    " and its schema in the request's, `interlingua/answerSchema`"
)

DOOR: dict[str, Carried] = {
    "list": Carried("the choices of the option `agent` of a session; `agentInfo` where there is one agent"),
    "run": Carried("`session/prompt`"),
    "stream": Carried("`agent_message_chunk`"),
    "structured_in": Carried("JSON as the text of the prompt"),
    "structured_out": Carried(
        "JSON as text at the end of the turn, and the value in the answer's `_meta` up to 256 KiB",
        "The pieces of an object that grows: a message is made of text, and half an object is none.",
    ),
    "files_in": Carried("image, audio, resource and resource_link blocks"),
    "data_in": Carried("JSON in a text block, with the value in its `_meta`, `interlingua/data`"),
    "files_out": Carried("image, audio, resource and resource_link blocks of the agent's messages"),
    "data_out": Carried("JSON in a text block, with the value in its `_meta`, `interlingua/data`"),
    "threads": Carried("a session"),
    "choose": Carried(
        _CHOICE,
        "What an answer says beside its choice, from clients that are none of ours: a permission is an option's id.",
    ),
    "form": Carried(f"{_FORM}; where the client shows no forms, words that the next prompt answers"),
    "ask": Carried("`elicitation/create` whose only field is a text; or words, as for forms"),
    "cancel": Carried("`session/cancel`, and the stop reason `cancelled`"),
    "error_code": Carried("`data.code` of the error, and its message"),
    "error_transient": Carried("`data.transient` of the error"),
    "error_details": Carried("`data.details` of the error"),
    "metadata": Carried("`_meta` of the prompt: `interlingua/metadata`, and members that are nobody's"),
    "trace": Carried("`_meta` of the prompt, in the members that are reserved for it"),
}
"""The features of the engine on their way to a client, and back."""

MOUNT: dict[str, Carried] = {
    "list": Carried("`agentInfo`; the choices of the option `agent` where a server of ours has several"),
    "run": Carried("`session/prompt`"),
    "stream": Carried("`agent_message_chunk`"),
    "structured_in": Carried(
        "a text block with JSON in it", "That it is an object: agents tell no schema, and take content blocks alone."
    ),
    "structured_out": Carried("text", "That it is an object: agents tell no schema, and say content blocks alone."),
    "files_in": Carried("image, audio and resource blocks"),
    "data_in": Carried("JSON in a text block, whose `_meta` has the value"),
    "files_out": Carried("image, audio and resource blocks of the agent's message"),
    "data_out": Carried("JSON in a text block, whose `_meta` has the value"),
    "threads": Carried("a session"),
    "choose": Carried(_CHOICE),
    "form": Carried(f"{_FORM}; what is asked in words ends the turn, and the next one on the thread answers"),
    "ask": Carried("`elicitation/create` whose only field is a text"),
    "cancel": Carried("`session/cancel`"),
    "error_code": Carried("`data.code` of the error, and its message"),
    "error_transient": Carried("`data.transient` of the error"),
    "error_details": Carried("`data.details` of the error; `data` and the number, of an agent that is none of ours"),
    "metadata": Carried("`_meta` of the prompt, `interlingua/metadata`"),
    "trace": Carried("`_meta` of the prompt, in the members that are reserved for it"),
}
"""The features of the engine on their way to a mounted agent, and back."""
