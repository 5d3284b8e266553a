"""The record of a task at this node, and its view for others."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["run", "delegated", "received"]


class Task(msgspec.Struct, omit_defaults=True):
    """A task. `scope` is its owner: the node's owner (""), a peer ("peer:ID") or a caller of the door ("caller:ID"). An
    id has a meaning only within its scope, so no other can take or guess it."""

    id: str
    status: str
    created_at: str
    updated_at: str
    input: dict[str, Any]
    scope: str = ""
    kind: Kind = "run"  # done by an agent of ours; by a peer, for our owner; by our owner, for a peer
    peer: str | None = None  # where it went, or came from
    run: str | None = None
    agent: str | None = None
    skill_id: str | None = None
    role: str = "user"
    context_id: str | None = None
    message_id: str | None = None
    artifact: dict[str, Any] | None = None  # the result
    artifacts: list[dict[str, Any]] = []  # all of them, the result last
    error: str | None = None
    error_info: dict[str, Any] | None = None
    question: dict[str, Any] | None = None  # the open question, while input is required
    title: str | None = None
    description: str | None = None
    payload: Any = None  # as it came, where it came in the reference's shape
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    version: int = 0  # of the stored record

    def view(self) -> dict[str, Any]:
        """Returns the task in the shape of the specification, with the members that readers of the reference expect."""
        told: dict[str, Any] = {
            "id": self.id,
            "task_id": self.id,
            "status": self.status,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "input": self.input,
            "role": self.role,
            "payload": self.payload if self.payload is not None else self.input,
            "artifacts": self.artifacts,
            "history": [],
        }
        for name in (
            "artifact", "error", "error_info", "message_id", "context_id", "skill_id", "question", "title",
            "description",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                told[name] = value
        if self.message_id is not None:
            told["origin_message_id"] = self.message_id
        if self.kind != "delegated" and self.peer is not None:
            told["from_peer"] = True
        if self.peer is not None:
            told["peer_id"] = self.peer
        if self.metadata:
            told["metadata"] = self.metadata
        return told

    def put_artifact(self, whole: dict[str, Any]) -> None:
        """Keeps an artifact whole, in place of an earlier one of its id."""
        id_ = whole.get("artifact_id")
        kept = [one for one in self.artifacts if id_ is None or one.get("artifact_id") != id_]
        self.artifacts = [*kept, whole]


decoder = msgspec.json.Decoder(Task)


def document_id(scope: str, task: str) -> str:
    return f"{scope}|{task}"
