"""The features of a run that each protocol carries, in the same words for all: the rows of docs/parity.md.

Every protocol's `parity.py` has two tables, `DOOR` and `MOUNT`, with one entry per feature. The page is made from them,
and the tests of every pair of protocols read them: where no loss is declared, everything must arrive; where a loss is
declared, exactly what is declared. Nothing reads them at run time.
"""

from __future__ import annotations

import msgspec


class Feature(msgspec.Struct, frozen=True):
    id: str
    title: str


class Carried(msgspec.Struct, frozen=True):
    how: str
    """The place on the wire."""
    lost: str = ""
    """The loss and its reason, in one sentence. Empty where nothing is lost."""


FEATURES: tuple[Feature, ...] = (
    Feature("list", "agents are listed"),
    Feature("run", "an agent is run"),
    Feature("stream", "output streams"),
    Feature("structured_in", "structured input"),
    Feature("structured_out", "structured output"),
    Feature("files_in", "files to the agent"),
    Feature("data_in", "data parts to the agent"),
    Feature("files_out", "files from the agent"),
    Feature("data_out", "data parts from the agent"),
    Feature("threads", "threads"),
    Feature("choose", "questions with choices"),
    Feature("form", "questions with a form"),
    Feature("ask", "questions for free text"),
    Feature("cancel", "cancelling"),
    Feature("error_code", "the code of an error"),
    Feature("error_transient", "whether an error may pass"),
    Feature("error_details", "the details of an error"),
    Feature("metadata", "metadata"),
    Feature("trace", "trace context"),
)
