"""The entries of a server's lists that can be run: agents and their templates, tools, and prompts that take arguments.

An entry knows the request that runs it, and reads the result of that request. Its `listed` has the form of
`agents/list`, whatever list it came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ....model.content import Part, read_part
from ....model.errors import RunError
from ....mounts.errors import RemoteError, our_failure
from .. import translate, wire

Key = tuple[str, str]
"""The kind of an entry and its name."""

_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


class Entry(ABC):
    kind: ClassVar[str]
    method: ClassVar[str]
    streams = False
    """Whether output comes before the result."""
    repeatable = False
    """Whether a call that may have been carried out may be sent again."""
    is_made = False
    """Whether the server makes an agent of it for each run."""

    def __init__(self, listed: dict[str, Any]) -> None:
        self.listed = listed
        self.name: str = listed["name"]
        self.key: Key = (self.kind, self.name)

    @abstractmethod
    def params(self, name: str, input_: dict[str, Any]) -> dict[str, Any]:
        """Returns the params of the request. `name` is the name of the agent to run, which may have been made for this
        run."""

    @abstractmethod
    def read(self, result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
        """Returns the output in a result, and the parts beside it. Raises RemoteError."""


class AgentEntry(Entry):
    kind = "agent"
    method = "agents/run"
    streams = True

    def __init__(self, listed: dict[str, Any], *, only_template: bool = False) -> None:
        super().__init__(listed)
        self.is_made = only_template

    def params(self, name: str, input_: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "input": input_}

    def read(self, result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
        if "output" not in result:
            raise _without("an output", self.method)
        meta, output = result.get("_meta"), result["output"]
        listed_parts = meta.get(wire.META_PARTS) if isinstance(meta, dict) else None
        parts = (
            [read_part(part) for part in listed_parts if isinstance(part, dict)]
            if isinstance(listed_parts, list)
            else []
        )
        return translate.as_object(output), parts


class ToolEntry(Entry):
    kind = "tool"
    method = "tools/call"

    def __init__(self, tool: dict[str, Any]) -> None:
        super().__init__({"outputSchema": _TEXT, **tool})
        annotations = tool.get("annotations")
        hints = annotations if isinstance(annotations, dict) else {}
        self.repeatable = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True

    def params(self, name: str, input_: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "arguments": input_}

    def read(self, result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
        if not isinstance(result.get("content"), list) and "structuredContent" not in result:
            raise _without("content", self.method)
        output, parts = translate.tool_output(result)
        if result.get("isError") is True:
            raise self._failure(result, output)
        return output, parts

    def _failure(self, result: dict[str, Any], output: dict[str, Any]) -> RunError:
        text = translate.text_of_blocks(result.get("content")) or f"{self.name} failed, and does not say why"
        meta = result.get("_meta")
        ours = our_failure(text, meta.get(wire.META_ERROR) if isinstance(meta, dict) else None)
        return ours or RemoteError(text, details=output if "structuredContent" in result else None)


class PromptEntry(Entry):
    kind = "prompt"
    method = "prompts/get"
    repeatable = True

    def __init__(self, prompt: dict[str, Any]) -> None:
        schema = translate.prompt_input_schema(prompt.get("arguments"))
        others = {name: value for name, value in prompt.items() if name != "arguments"}
        super().__init__({**others, "inputSchema": schema, "outputSchema": translate.PROMPT_OUTPUT})

    def params(self, name: str, input_: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "arguments": input_}

    def read(self, result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
        if not isinstance(result.get("messages"), list):
            raise _without("messages", self.method)
        return translate.prompt_output(result)


def takes_arguments(prompt: dict[str, Any]) -> bool:
    """Tells if a prompt differs from call to call. Without arguments it is a text, and not worth an agent."""
    return bool(prompt.get("arguments")) and isinstance(prompt["arguments"], list)


def _without(what: str, method: str) -> RemoteError:
    return RemoteError(f"the server answered {method} without {what}")
