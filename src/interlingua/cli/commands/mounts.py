"""`interlingua mounts`: the mounts of a server that runs, whether they are up, and why not."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from ..options import Json, Key, examples

EPILOG = examples("interlingua mounts", "interlingua mounts http://127.0.0.1:9000 --json")


def mounts(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="The server; by default the address in the settings in force.",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show the mounts of a running server.

    For each: whether it is up or down, since when and why, when it is tried next, and its agents.

    The exit code is 1 if a mount is down.
    """
    import json

    told = _ask(url or _usual(), key)
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(told)
    if any(mount["state"] != "up" for mount in told):
        raise typer.Exit(1)


def _usual() -> str:
    from ...server.config.load import read
    from ...server.paths import Place

    config = read(Place().file)
    host = config["server.host"]
    host = "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host == "::" else host  # noqa: S104
    return f"http://{host}:{config['server.port']}"


def _ask(url: str, key: str | None) -> list[dict[str, Any]]:
    import httpx2

    from ...model.errors import Denied, InvalidRequest, Unavailable

    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"the address of a server begins with http://, got {url[:80]!r}")
    headers = {"x-api-key": key} if key else {}
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/mounts", headers=headers, timeout=10.0)
        if answer.status_code == 401:
            raise Denied(f"{url} wants a key: --key, or INTERLINGUA_KEY")
        answer.raise_for_status()
        told = answer.json()["mounts"]
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"no server answers at {url}: {str(error) or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"what answers at {url} is no server of ours") from None
    return list(told)


def _print(told: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ...terminal.console import clean, console

    if not told:
        console().print("no mounts")
        return
    table = Table("mount", "state", "since", "agents", "reason", box=None, pad_edge=False)
    for mount in told:
        state, again = mount["state"], mount.get("next_try_in")
        reason = mount.get("reason", "") + (f" (next try in {again:.0f} s)" if again is not None else "")
        reason = "; ".join([*([reason] if reason else []), *mount.get("left_out", [])])
        cells = (mount["mount"], state, _ago(mount["since"]), ", ".join(mount.get("agents", [])), reason)
        style = "" if state == "up" else "red"
        table.add_row(*(Text(clean(cell), style if at == 1 else "") for at, cell in enumerate(cells)))
    console().print(table)


def _ago(since: int) -> str:
    seconds = max(0, int(time.time() - since / 1e6))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
