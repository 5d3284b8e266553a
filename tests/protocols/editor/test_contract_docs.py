"""docs/editors.md: what it tells people to write into their settings starts an agent."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.kit.clients.editor import COMMAND, PATIENCE, stdio

from .test_contract_transports import section

PAGE = section("Your agent in an editor")
ECHO = "import interlingua as il\n\n@il.agent\nasync def echo(text: str) -> str:\n    return text\n"


def arguments() -> dict[str, list[str]]:
    """The command and its arguments, as each example on the page writes them."""
    found: dict[str, list[str]] = {}
    for number, text in enumerate(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)):
        for server in json.loads(text)["agent_servers"].values():
            found[f"json {number}"] = [server["command"], *server["args"]]
    for number, text in enumerate(re.findall(r"```lua\n(.*?)```", PAGE, re.DOTALL)):
        (command,) = re.findall(r'command = "([^"]+)"', text)
        (args,) = re.findall(r"args = \{([^}]*)\}", text)
        found[f"lua {number}"] = [command, *re.findall(r'"([^"]+)"', args)]
    for number, text in enumerate(re.findall(r"^\$ (interlingua .*)$", PAGE, re.MULTILINE)):
        found[f"shell {number}"] = shlex.split(text)
    return found


@pytest.mark.parametrize("example", sorted(arguments()))
async def test_the_settings_of_every_editor_start_an_agent(tmp_path: Path, example: str) -> None:
    command, *words = arguments()[example]
    assert Path(command).name == "interlingua"
    assert Path(words[-1]).name == "agents.py"
    assert words[:-1] == COMMAND[1:], "the words that the tests start it with"
    async with stdio(tmp_path, ECHO) as client:
        assert (await client.initialize())["agentInfo"]["name"] == "echo"
        session = await client.new_session()
        await client.prompt(session, "hello")
        assert client.text(session) == "hello"
        await client.end_input()
        assert await client.wait(PATIENCE) == 0


def test_the_page_names_the_editors_that_people_use() -> None:
    assert len(arguments()) >= 4
    for editor in ("Zed", "JetBrains", "Neovim", "avante.nvim", "CodeCompanion", "Emacs", "VS Code"):
        assert editor in PAGE
