"""Checks schemas of servers, and values against them. Shared by the checks of all protocols."""

from __future__ import annotations

from typing import Any

from interlingua.model.errors import DefinitionError, Invalid
from interlingua.model.schemas import Validator, check_refs_local

from .base import Broken, shown


def compiled(schema: Any, what: str) -> Validator | None:
    """Returns a validator for a schema of the server; None if the schema refers to a place outside itself."""
    try:
        check_refs_local(schema, what)
    except DefinitionError:
        return None
    try:
        return Validator(schema, what=what)
    except (DefinitionError, RecursionError) as error:
        said = error.message if isinstance(error, DefinitionError) else f"{what} is nested too deeply"
        raise Broken(f"{' '.join(said.split())}: {shown(schema)}") from None


def fits(value: Any, schema: Any, what: str) -> None:
    """Raises Broken if a value does not fit its schema."""
    validator = compiled(schema, what)
    try:
        if validator is not None:
            validator.check(value, Invalid)
    except Invalid as error:
        raise Broken(f"{error.message}: {shown(value)}") from None


def problem(value: Any, schema: Any, what: str) -> str | None:
    """Describes what is wrong with a value by a schema. Returns None if nothing is, or if the schema itself is
    wrong."""
    try:
        validator = compiled(schema, what)
        if validator is not None:
            validator.check(value, Invalid)
    except Broken:
        return None  # it is no schema, which another check reports
    except Invalid as error:
        return error.message
    return None
