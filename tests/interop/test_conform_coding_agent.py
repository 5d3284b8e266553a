"""Our checks of the Agent Client Protocol on a coding agent that people use, offline: what they find is on the page
docs/findings/editor.md. It is tried only where INTERLINGUA_INTEROP_AGENTS=1 is set, and takes some minutes.
"""

from __future__ import annotations

import re
import shlex

import pytest

from interlingua_conform.base import Roles, Subject

from ..conform.common import failures, findings
from .test_conform_editor import PAGE
from .test_editor_coding_agent import command, variables  # noqa: F401 - fixtures

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

FOUND = {
    "editor.batch.every-version", "editor.input.ids-exact", "editor.input.too-long",
    "editor.v1.initialize-first", "editor.v1.initialize-failed", "editor.input.random",
}  # fmt: skip
SOMETIMES = {"editor.v1.delete"}


async def test_a_coding_agent_has_the_findings_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
    command: str,  # noqa: F811
    variables: dict[str, str],  # noqa: F811
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    roles = Roles(asking="make a file")  # its model always wants to
    found = await findings("editor", Subject(command=tuple(shlex.split(command)), roles=roles, patience=20))
    assert set(failures(found)) - SOMETIMES == FOUND, failures(found)
    assert set(re.findall(r"`(editor\.[a-z0-9.-]+)`", PAGE.read_text())) >= FOUND | SOMETIMES
