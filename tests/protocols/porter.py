"""An agent that tells what came along with its input, and gives a file, a value and a word beside its output."""

from __future__ import annotations

import json
from typing import Any

import interlingua as il
from interlingua.model.content import Part

FILE = il.FilePart(data=b"\x00\xff", media_type="application/octet-stream", name="answer.bin")
VALUE = {"k": [1, 2]}


@il.agent
async def porter(text: str, ctx: il.Context[None, None], note: str = "") -> str:
    """Carries things."""
    await ctx.message("on my way")
    await ctx.artifact([FILE, il.DataPart(VALUE)], name="answer")
    told: dict[str, Any] = {"text": text, "note": note, "parts": [], "metadata": ctx.metadata}
    told["parts"] = [_told(part) for message in ctx.messages for part in message.parts]
    return json.dumps(told)


def _told(part: Part) -> Any:
    match part:
        case il.TextPart():
            return part.text
        case il.FilePart():
            body = part.data.decode("latin-1") if part.data is not None else part.text
            return [part.name, part.media_type, body if body is not None else part.url]
        case il.DataPart():
            return {"data": part.data}
    return None


def came(output: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output["text"] if isinstance(output, dict) else output)
    return found
