"""Flags out of the table of settings: one for every setting."""

from __future__ import annotations

import inspect
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from ..server.config.fields import Entries, Setting
from ..server.config.settings import ENTRIES, all_settings

_GIVEN, _HELP_ALL = "interlingua.settings", "help_all"
_ORDER = (
    "targets", "file", "config", "server_host", "server_port", "store_path", "mounts", "server_doors", "server_log",
    "server_allowed_hosts", "server_allowed_origins", "auth_issuers", "auth_audience", "changed", "as_json", _HELP_ALL,
    "help",
)  # fmt: skip
"""The parameters of the short help."""
_OWN_BRIEF = {
    "targets": "Files with agents, team:DIR, or mounts.",
    "config": "The config file; by default ./interlingua.toml.",
}
_MORE = (
    "Each option is also a key of `interlingua.toml` and a variable: see `--help-all`, and `interlingua config show`."
)
_TYPES: dict[str, Any] = {
    "text": str | None, "whole": int | None, "number": float | None, "yes": bool | None, "path": Path | None,
    "texts": list[str] | None, "numbers": list[float] | None, "counts": list[str] | None,
}  # fmt: skip
_PANELS = {
    "": "Store",
    "server": "Server", "store": "Store", "bus": "Bus", "auth": "Callers", "callbacks": "Callbacks", "limits": "Limits",
    "mounting": "Mounts",
}  # fmt: skip


class DerivedCommand(TyperCommand):
    """A command with options that are derived from descriptions of settings, beside those of its function; `given`
    returns their values. They are many and most calls are of another command, so they are made when first needed."""

    _own: list[Any]
    _made: list[Any] | None

    def derived(self) -> list[inspect.Parameter]:
        """Returns the derived options."""
        raise NotImplementedError

    @property
    def params(self) -> list[Any]:
        if self._made is None:  # one list for good: the library appends --help to it, and takes it from there
            arguments = [one for one in self._own if one.param_type_name == "argument"]
            own = [one for one in self._own if one not in arguments]
            self._made = [*arguments, *_options(self.derived()), *own]
        return self._made

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._own, self._made = own, None

    def invoke(self, ctx: Any) -> Any:
        own = {one.name for one in self._own}
        ctx.params.pop(_HELP_ALL, None)
        ctx.meta[_GIVEN] = {name: ctx.params.pop(name) for name in list(ctx.params) if name not in own}
        return super().invoke(ctx)


class SettingsCommand(DerivedCommand):
    """A command with an option for every setting: `--help` shows the basic ones, `--help-all` shows all."""

    @staticmethod
    def has(path: str) -> bool:
        """Returns whether the command has an option for a setting, or for a list of entries."""
        return True

    def derived(self) -> list[inspect.Parameter]:
        entries = (_entries(one) for one in ENTRIES if one.flag.startswith("-") and self.has(one.path))
        show_all = typer.Option(
            "--help-all", help="Show all options.", callback=_help_all, is_eager=True, show_default=False
        )
        return [
            *entries,
            *(_setting(one) for one in all_settings() if self.has(one.path)),
            parameter(_HELP_ALL, bool | None, show_all),
        ]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        brief = copy(self)
        brief._made = sorted(filter(None, map(self._brief, self.params)), key=lambda one: _ORDER.index(one.name))
        brief.help, brief.epilog = (self.help or "").partition("\n\n")[0], _MORE
        super(SettingsCommand, brief).format_help(ctx, formatter)

    def _brief(self, parameter: Any) -> Any:
        """Returns a parameter as the short help shows it; None: it does not."""
        if parameter.name not in _ORDER:
            return None
        texts = {one.parameter: one.basic for one in all_settings()} | {one.parameter: one.basic for one in ENTRIES}
        parameter = copy(parameter)
        parameter.help = texts.get(parameter.name) or _OWN_BRIEF.get(parameter.name, parameter.help)
        parameter.rich_help_panel, parameter.show_default = None, False
        return parameter

    def all_help(self, ctx: Any) -> str:
        """Returns the help with all options."""
        formatter = ctx.make_formatter()
        super().format_help(ctx, formatter)
        return str(formatter.getvalue())


class WorkCommand(SettingsCommand):
    """The same for a process without doors: flags for what it can have a use for."""

    @staticmethod
    def has(path: str) -> bool:
        sections = ("project", "agents", "teams", "mounts", "store", "bus", "limits", "mounting")
        return path in ("server.log", "server.metrics", "server.reload") or path.partition(".")[0] in sections


def given(ctx: typer.Context) -> dict[str, Any]:
    """The settings that were written as flags, by the names of the table; None where they were not."""
    return dict(ctx.meta[_GIVEN])


def _options(parameters: list[inspect.Parameter]) -> list[Any]:
    def nothing() -> None:
        """Stands for the function that these are parameters of."""

    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(nothing)
    names = {one.name for one in parameters}
    return [_quick(one) for one in get_command(app).params if one.name in names]


def _help_all(ctx: typer.Context, wanted: bool | None) -> None:
    if wanted and isinstance(ctx.command, SettingsCommand):
        typer.echo(ctx.command.all_help(ctx).rstrip())
        raise typer.Exit


def _quick(option: Any) -> Any:
    """Skips the processing of an option that was not given. Typer (0.29) builds a validator for every option of a
    command, which for all of these takes as long as everything else at the start of a server."""
    process = option.process_value

    def given_or_nothing(ctx: Any, value: Any) -> Any:
        return (() if option.multiple else None) if value is None else process(ctx, value)

    option.process_value = given_or_nothing
    return option


def _setting(setting: Setting) -> inspect.Parameter:
    panel = _PANELS.get(setting.section) or f"Door: {setting.section.removeprefix('doors.')}"
    return option_of(setting, setting.parameter, _spelled(setting), rich_help_panel=panel)


def option_of(setting: Setting, name: str, flags: list[str], **more: Any) -> inspect.Parameter:
    """Returns the option of a setting: None where it is not given."""
    repeatable = setting.kind in ("texts", "numbers", "counts")
    option = typer.Option(
        *flags,
        help=setting.help + (" (repeatable)" if repeatable else ""),
        metavar=setting.metavar or ("|".join(setting.choices) if setting.choices else None),
        show_default=_default(setting),
        **more,
    )
    return parameter(name, _TYPES[setting.kind], option)


def _spelled(setting: Setting) -> list[str]:
    return [setting.flags, "-p"] if setting.path == "server.port" else [setting.flags]


def _default(setting: Setting) -> bool | str:
    """Returns the default that the help shows for a flag. A flag that is not given is None here, whatever it means
    then."""
    if setting.default in (None, [], (), {}):
        return False
    if isinstance(setting.default, bool):
        return setting.flags.partition("/")[0 if setting.default else 2].removeprefix("--")
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _entries(entries: Entries) -> inspect.Parameter:
    option = typer.Option(
        entries.flag, metavar=entries.metavar or None, help=f"{entries.help} (repeatable)", show_default=False,
        rich_help_panel="Callers" if entries.path.startswith("auth") else None,
    )  # fmt: skip
    return parameter(entries.parameter, list[str] | None, option)


def parameter(name: str, type_: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[type_, option]
    )  # fmt: skip
