"""INPUT, --config, --metadata and answers: from the command line, stdin or a file to JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from ..model import json_values
from ..model.card import AgentCard
from ..model.errors import Invalid, InvalidInput
from ..model.schemas import Validator
from ..transports.json_text import fault
from . import typed_answers
from .errors import CommandError


def text_of(given: str) -> str:
    """The text itself, or that of stdin (`-`) or of a file (`@FILE`)."""
    if given == "-":
        return _decoded(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    if given.startswith("@") and len(given) > 1:
        file = Path(given[1:]).expanduser()
        try:
            return _decoded(file.read_bytes(), str(file)).removesuffix("\n")
        except OSError as error:
            raise CommandError(
                f"{file} cannot be read: {error.strerror}",
                hint="@ names a file; for a text that begins with @ give the input as JSON, or on stdin with -",
            ) from None
    try:
        given.encode()
    except UnicodeEncodeError:  # Python shows bytes of an argument that are no UTF-8 in this way
        raise CommandError("the argument is not UTF-8 text") from None
    return given


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{where} is not UTF-8 text (byte {error.start})") from None


def json_of(given: str, what: str) -> Any:
    text = text_of(given)
    try:
        return json_values.decode(text)
    except msgspec.DecodeError:
        raise CommandError(f"{what} {fault(text)}", hint=f"quote it for the shell: {what} '{{…}}'") from None


def metadata_of(pairs: list[str]) -> dict[str, Any]:
    """Reads `k=v` pairs; a value that is JSON is taken as such."""
    metadata: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CommandError(f"--metadata {pair!r} is not of the form KEY=VALUE")
        try:
            metadata[key] = json_values.decode(value)
        except msgspec.DecodeError:
            metadata[key] = value
    return metadata


async def input_of(card: AgentCard, given: str | None, *, ask: bool) -> dict[str, Any]:
    """The input of a run: text for the card's text field, or an object. `ask`: what is missing may be asked for."""
    if given is None:
        if ask and card.input.get("required"):
            from .ask import form

            try:
                return await form(_required_only(card), InvalidInput, "input")
            except EOFError:
                raise CommandError("no input was given") from None
        return _checked(card, {})
    text = text_of(given)
    if text.lstrip().startswith("{"):
        try:
            value = json_values.decode(text)
        except msgspec.DecodeError:
            if card.input_text is None:
                raise CommandError(f"the input {fault(text)}", hint=_fields(card)) from None
        else:
            return _checked(card, value)
    if card.input_text is None:
        raise CommandError(f"agent {card.name} takes no plain text; its input is a JSON object", hint=_fields(card))
    return _checked(card, {card.input_text: text})


def _required_only(card: AgentCard) -> dict[str, Any]:
    """Returns the input schema with its required members only, so that nothing else is asked for; the rest has its
    defaults."""
    needed = card.input.get("required", [])
    properties = {name: schema for name, schema in card.input.get("properties", {}).items() if name in needed}
    return {**card.input, "properties": properties}


def _checked(card: AgentCard, value: Any) -> dict[str, Any]:
    try:
        Validator(card.input, what="input").check(value, InvalidInput)
    except Invalid as error:
        raise CommandError(error.message, hint=_fields(card)) from error
    assert isinstance(value, dict)
    return value


def _fields(card: AgentCard) -> str:
    fields = typed_answers.describe_fields(card.input)
    if not fields:
        return f"the input of {card.name} is an object"
    return f"the input of {card.name} has\n" + "\n".join(f"  {line}" for line in fields)
