"""Makes answers to questions of unknown agents: fitting ones, if the server describes which answers fit."""

from __future__ import annotations

from typing import Any

from interlingua.model.question_forms import matching_form, parse_answer
from interlingua.model.run import Question
from interlingua.model.schemas import usable

from .sample import made_for
from .schemas import problem

WORD = "yes"
"""The answer to a question that says nothing of its answers."""

ANSWER_SCHEMA = "interlingua/answerSchema"
"""In `_meta` of a form, where its fields do not say all of the answer: the schema of that."""


_HINT = "name an agent that asks for something simpler with --asks"


def fitting(schema: Any) -> Any:
    """An answer that a schema takes."""
    return made_for(schema, "the answer", _HINT)


def filled_in(params: Any) -> Any:
    """Returns an answer to a form: an answer that fits the schema sent beside the form, laid into its fields; else one
    made from the fields alone."""
    shown = params.get("requestedSchema") if isinstance(params, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    told = matching_form(meta.get(ANSWER_SCHEMA), shown) if isinstance(meta, dict) else None
    if told is not None:
        laid, schema = told
        content = laid.content(fitting(schema))
        if problem(content, shown, "the form") is None:  # else they are choices, which have names of their own
            return content
    return made_for(shown, "the form", _HINT)


def answer_to(schema: Any) -> Any:
    """An answer to a question that may tell its schema: a word, where that is enough."""
    if not isinstance(schema, dict) or usable(schema) != schema:
        return WORD
    meant = parse_answer(Question("", "", "", None, schema, 0), WORD)
    return WORD if problem(meant, schema, "the answer") is None else fitting(schema)
