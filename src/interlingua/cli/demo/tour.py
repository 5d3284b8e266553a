"""Prints the parts of the demo: paragraphs, requests as lines to paste, and answers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from ...terminal.errors import CommandError

_LONGEST = 150  # characters of a shown line


class Wire:
    """Requests to the server of the demo."""

    def __init__(self, address: str) -> None:
        import httpx2  # here, because the other commands do not need it

        self.address = address
        self._http = httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, statuses: tuple[int, ...]
    ) -> Any:
        """Sends a request and returns its answer as JSON. Raises CommandError for another status than these."""
        content = {} if body is None else {"json": body}
        answer = await self._http.request(method, path, headers=headers, **content)
        if answer.status_code not in statuses:
            raise CommandError(f"the server answered {answer.status_code} to {method} {path}: {answer.text[:300]}")
        return answer.json()

    def stream(self, method: str, path: str, headers: dict[str, str] | None = None) -> Any:
        """Sends a request whose answer is read as it comes."""
        return self._http.stream(method, path, headers=headers)

    def shown(self, method: str, path: str, body: Any, headers: dict[str, str] | None, *options: str) -> None:
        """Prints the line that sends the same request in a shell."""
        words = ["curl", "-s", *options, self.address + path]
        for name, value in (headers or {}).items():
            words += ["-H", f"{name}: {value}"]
        if body is not None:
            words += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        elif method != "GET":
            words += ["-X", method]
        prompt(shlex.join(words))


def say(title: str, text: str) -> None:
    """A paragraph of the tour."""
    from rich.text import Text

    from ...terminal.console import error_console

    console = error_console()
    console.print()
    if title:
        console.print(Text(title, "bold cyan"))
    console.print(Text(text))


def command(*lines: str) -> None:
    """Prints a line that runs this program, or several joined by pipes."""
    prompt(" | ".join(f"{program()} {line}" for line in lines))


def program() -> str:
    """Returns the command that starts this program in another terminal in this folder: its name, if a shell finds it by
    that."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{path(Path(sys.executable))} -m interlingua"
    on_path = shutil.which(script.name)
    return script.name if on_path and Path(on_path).resolve() == script.resolve() else path(script)


def path(file: Path) -> str:
    """A file as a shell in this folder takes it, in the shorter of both ways."""
    return shlex.quote(min(os.path.relpath(file), str(file.absolute()), key=len))


def prompt(line: str) -> None:
    """Prints a line that the demo carries out, so that a reader can paste it."""
    from rich.text import Text

    from ...terminal.console import error_console

    error_console().print(Text.assemble(("$ ", "dim"), (line, "bold")), soft_wrap=True)


def show(line: str) -> None:
    """An answer, cut to a readable length."""
    from ...terminal.console import clean, console

    line = clean(line)
    cut = line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
    console().print(cut, markup=False, highlight=False, soft_wrap=True)


def show_json(value: Any) -> None:
    show(json.dumps(value, ensure_ascii=False))
