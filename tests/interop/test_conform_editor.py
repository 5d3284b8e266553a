"""Our checks of the Agent Client Protocol on servers of others: what they find is on the page docs/findings/editor.md.

PyPI `agent-client-protocol` 0.12.1 and npm `@agentclientprotocol/sdk` 2.4.0, each as a command and over HTTP, with the
agents of `editor_agent.py` and `editor_agent.mjs`. A finding that has gone, or one that is new, is a failure here: the
page is to be changed then.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlingua_conform.base import Roles, Subject

from ..conform.common import failures, findings
from .editor_peers import Sdk, Sdks, process_with_address

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs" / "findings" / "editor.md"
ROLES = Roles(asking="ask", slow="wait", failing="fail")  # what these agents do when they are told so

NO_BATCHES = {
    f"editor.batch.{name}"
    for name in (
        "combines", "client-sends", "v2-json-rpc-rules", "mixed", "response-array", "response-per-request",
        "no-response-per-notification", "no-reply-to-notification-in-batch", "notifications-only", "nothing-to-return",
        "invalid-entry", "invalid-entry-isolated", "nested", "duplicate-ids", "responses", "response-after-all",
        "asks-back", "follows-array",
    )
}  # fmt: skip

# Of the SDKs, and of the agents that are written with them here, which do less than they could.
PYPI = {
    "editor.batch.every-version", "editor.input.broken-json", "editor.input.no-object", "editor.input.version",
    "editor.input.ids", "editor.input.nan", "editor.input.nesting", "editor.v1.initialize-first",
    "editor.batch.lifecycle-affects-later",
}  # fmt: skip
PYPI_STDIO = {
    "editor.stdio.batch", "editor.input.invalid-utf-8", "editor.input.random", "editor.stdio.files-and-sockets",
}  # fmt: skip
PYPI_HTTP = {"editor.http.websocket-initialize", "editor.custom.keeps-lifecycle"}
PYPI_AGENT = {"editor.v1.config-options", "editor.v1.load"}

NPM = {*NO_BATCHES, "editor.input.ids-exact"}
NPM_STDIO = {"editor.stdio.batch", "editor.input.too-long"}
NPM_HTTP = {"editor.v1.initialize-failed", "editor.http.batch"}
NPM_AGENT = {
    "editor.v1.cancel-permission", "editor.v1.config-options", "editor.v1.load", "editor.v1.close", "editor.v2.resume",
}  # fmt: skip

COMMANDS = {"pypi": PYPI | PYPI_STDIO | PYPI_AGENT, "npm": NPM | NPM_STDIO | NPM_AGENT}
SERVERS = {"pypi": PYPI | PYPI_HTTP | PYPI_AGENT, "npm": NPM | NPM_HTTP | NPM_AGENT}


@pytest.mark.parametrize("sdk", COMMANDS)
async def test_a_command_on_the_sdk_has_the_findings_of_the_page(request: pytest.FixtureRequest, sdk: Sdk) -> None:
    found = await findings("editor", Subject(command=tuple(Sdks(request).agent(sdk)), roles=ROLES, patience=20))
    assert set(failures(found)) == COMMANDS[sdk], failures(found)


@pytest.mark.parametrize("sdk", SERVERS)
async def test_a_server_on_the_sdk_has_the_findings_of_the_page(
    request: pytest.FixtureRequest, tmp_path: Path, sdk: Sdk
) -> None:
    with process_with_address([*Sdks(request).agent(sdk), "serve"], tmp_path / "agent.log") as address:
        found = await findings("editor", Subject(address=f"{address}/acp", roles=ROLES, patience=20))
    assert set(failures(found)) == SERVERS[sdk], failures(found)


def test_the_page_names_every_finding() -> None:
    told = set(re.findall(r"`(editor\.[a-z0-9.-]+)`", PAGE.read_text()))
    assert set().union(*COMMANDS.values(), *SERVERS.values()) <= told
