"""Flags out of the table of settings: a command that takes `**flags` gets one for every setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..app.config_setting import Entries, Setting
from ..app.config_table import ENTRIES, SETTINGS

_TYPES: dict[str, Any] = {
    "text": str | None, "whole": int | None, "number": float | None, "yes": bool | None, "path": Path | None,
    "texts": list[str] | None, "numbers": list[float] | None,
}  # fmt: skip
_PANELS = {
    "server": "Server", "store": "Store", "auth": "Callers", "callbacks": "Callbacks", "limits": "Limits",
    "mounting": "Mounts",
}  # fmt: skip


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each setting. Those that were not given are None."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    made = [*(_entries(one) for one in ENTRIES if one.flag.startswith("-")), *map(_setting, SETTINGS)]
    command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *made)}
    return command


def _setting(setting: Setting) -> inspect.Parameter:
    repeatable = setting.kind in ("texts", "numbers")
    option = typer.Option(
        *_spelled(setting),
        help=setting.help + (" (repeatable)" if repeatable else ""),
        metavar=setting.metavar or ("|".join(setting.choices) if setting.choices else None),
        show_default=_default(setting),
        rich_help_panel=_PANELS.get(setting.section) or f"Door: {setting.section.removeprefix('doors.')}",
    )
    return _parameter(setting.parameter, _TYPES[setting.kind], option)


def _spelled(setting: Setting) -> list[str]:
    return [setting.flags, "-p"] if setting.path == "server.port" else [setting.flags]


def _default(setting: Setting) -> bool | str:
    """What is told of it. A flag that is not given is None here, whatever it means then."""
    if setting.default in (None, [], {}):
        return False
    if isinstance(setting.default, bool):
        return setting.flags.partition("/")[0 if setting.default else 2].removeprefix("--")
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _entries(entries: Entries) -> inspect.Parameter:
    option = typer.Option(
        entries.flag, metavar=entries.metavar or None, help=f"{entries.help} (repeatable)", show_default=False,
        rich_help_panel="Callers" if entries.path.startswith("auth") else None,
    )  # fmt: skip
    return _parameter(entries.parameter, list[str] | None, option)


def _parameter(name: str, type_: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[type_, option]
    )  # fmt: skip
