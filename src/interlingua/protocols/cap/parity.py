"""The tables of parity: what the door and the mount of this protocol carry, and where on its wire."""

from __future__ import annotations

from ..parity import Carried

DOOR: dict[str, Carried] = {
    "list": Carried("manifests of `/agents`"),
    "run": Carried("a `delegation_notice`, and the message back"),
    "stream": Carried("`delta` events of the task"),
    "structured_in": Carried("`metadata.input` of the notice, or the one `python_object` that is attached"),
    "structured_out": Carried("`output` of the task, and a `python_object` of the message back; `delta` events"),
    "files_in": Carried("`file` attachments; bytes as a `data:` address"),
    "data_in": Carried("`python_object` attachments"),
    "files_out": Carried("`file` attachments of the message back; bytes as a `data:` address"),
    "data_out": Carried("`python_object` attachments of the message back"),
    "threads": Carried("`metadata.thread` of the notice"),
    "choose": Carried("a message to the user with `options` and `answer_schema` in its metadata"),
    "form": Carried("a message to the user with `answer_schema` in its metadata"),
    "ask": Carried("the same"),
    "cancel": Carried("`cancel` of the task, or an `error_response` with the code 499"),
    "error_code": Carried("`metadata.code` of the `error_response`, beside the number that is nearest"),
    "error_transient": Carried("`metadata.transient` of the `error_response`"),
    "error_details": Carried("`metadata.details` of the `error_response`"),
    "metadata": Carried(
        "`metadata` of the notice; `interlingua/metadata` in it, for names that say something else there"
    ),
    "trace": Carried("headers of the request; `metadata` of the notice in a program's lines"),
}
"""The features of the engine on their way to a client, and back."""

MOUNT: dict[str, Carried] = {
    "list": Carried("manifests of `/agents`; a program is one agent"),
    "run": Carried("a `delegation_notice`, and the message back"),
    "stream": Carried("`delta` events of the task"),
    "structured_in": Carried("`metadata.input` of the notice"),
    "structured_out": Carried("`output` of the task, or `metadata.output` of the message back"),
    "files_in": Carried("`file` attachments; bytes as a `data:` address"),
    "data_in": Carried("`python_object` attachments"),
    "files_out": Carried("`file` attachments of the message back"),
    "data_out": Carried("`python_object` attachments of the message back"),
    "threads": Carried("`metadata.thread` of the notice"),
    "choose": Carried("a message to the user with `options` and `answer_schema` in its metadata"),
    "form": Carried("a message to the user with `answer_schema` in its metadata"),
    "ask": Carried("a message to the user"),
    "cancel": Carried("`cancel` of the task; an `error_response` with the code 499 to a program"),
    "error_code": Carried(
        "`metadata.code` of the `error_response`; else the code of the tree that is nearest its number"
    ),
    "error_transient": Carried("`metadata.transient` of the `error_response`; else what its number means"),
    "error_details": Carried("`metadata.details` of the `error_response`"),
    "metadata": Carried(
        "`metadata` of the notice; `interlingua/metadata` in it, for names that say something else there"
    ),
    "trace": Carried("headers of the request; `metadata` of the notice to a program"),
}
"""The features of the engine on their way to a mounted agent, and back."""
