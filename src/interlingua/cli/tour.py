"""The part of the demo that goes over HTTP: real requests to the server of the demo, shown as curl lines."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from .errors import CommandError

if TYPE_CHECKING:
    import httpx2

    from ..app.serve import Server

_LONGEST = 150  # of a line that is shown


async def over_http(server: Server) -> int:
    """The Agent Connect Protocol, as any client speaks it."""
    import httpx2

    from .serve import show

    say("5  over HTTP", "The same agents are served as well, one door per protocol. Every request here is a real one.")
    show(server)
    async with httpx2.AsyncClient(base_url=f"{server.address}/connect", timeout=30, trust_env=False) as http:
        if (await http.get("/auth")).json()["schemes"]:
            say(
                "",
                "This store has keys, so the server wants one, and the tour has none to send.",
            )
            return 0
        await _wait(http)
        await _stream(http)
        await _thread(http)
    return 0


async def _wait(http: httpx2.AsyncClient) -> None:
    say("", "Create a run and wait for its output:")
    told = await _ask(http, "POST", "/runs/wait", {"agent_id": "echo", "input": {"text": "hello over HTTP"}})
    show_json(told["output"])


async def _stream(http: httpx2.AsyncClient) -> None:
    say("", "Or stream it. Every event has an id: a stream that breaks can be taken up after any of them.")
    body = {"agent_id": "counter", "input": {"to": 3, "delay": 0.2}, "stream_mode": "custom"}
    _curl(http, "POST", "/runs/stream", body, "-N")
    async with http.stream("POST", "/runs/stream", json=body) as answer:
        if answer.status_code != 200:
            raise CommandError(f"the server answered {answer.status_code} to POST /runs/stream")
        shown = 0
        async for line in answer.aiter_lines():
            if line.startswith(("id:", "data:")) and (shown := shown + 1) <= 12:
                _show(line)
        if shown > 12:
            _show(f"… and {(shown - 12) // 2} more events")


async def _thread(http: httpx2.AsyncClient) -> None:
    say("", "A thread remembers what was said on it:")
    thread = (await _ask(http, "POST", "/threads", {}))["thread_id"]
    runs = f"/threads/{thread}/runs"
    mail = {"agent_id": "org.agntcy.mailcomposer"}
    told = await _ask(http, "POST", f"{runs}/wait", {**mail, "input": {"message": "To: ada@example.org. At noon?"}})
    show_json(told["output"])
    told = await _ask(http, "POST", f"{runs}/wait", {**mail, "input": {"message": "Subject: Lunch"}})
    show_json(told["output"])
    say("", "The agent asks, and its run is interrupted until somebody answers; a restart would not matter.")
    run = told["run"]["run_id"]
    told = await _ask(http, "POST", f"{runs}/{run}", {"approved": True})
    _show(f"status: {told['status']}")
    told = await _ask(http, "GET", f"{runs}/{run}/wait")
    show_json(told["output"])


async def _ask(http: httpx2.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    _curl(http, method, path, body)
    answer = await http.request(method, path, json=body) if body is not None else await http.request(method, path)
    if answer.status_code != 200:
        raise CommandError(f"the server answered {answer.status_code} to {method} {path}: {answer.text}")
    return answer.json()


def _curl(http: httpx2.AsyncClient, method: str, path: str, body: Any, *options: str) -> None:
    words = ["curl", "-s", *options, str(http.base_url).rstrip("/") + path]
    if body is not None:
        words += ["-H", "content-type: application/json", "-d", json.dumps(body)]
    elif method != "GET":
        words += ["-X", method]
    _prompt(shlex.join(words))


def show_json(value: Any) -> None:
    _show(json.dumps(value, ensure_ascii=False))


def _show(line: str) -> None:
    from .render import clean, console

    line = clean(line)
    cut = line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
    console().print(cut, markup=False, highlight=False, soft_wrap=True)


def say(title: str, text: str) -> None:
    """A paragraph of the tour."""
    from rich.text import Text

    from .render import error_console

    console = error_console()
    console.print()
    if title:
        console.print(Text(title, "bold cyan"))
    console.print(Text(text))


def command(line: str) -> None:
    _prompt(f"interlingua {line}")


def _prompt(line: str) -> None:
    from rich.text import Text

    from .render import error_console

    error_console().print(Text.assemble(("$ ", "dim"), (line, "bold")), soft_wrap=True)
