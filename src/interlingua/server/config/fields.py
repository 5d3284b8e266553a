"""Reads the descriptions of settings from annotated structs: `Annotated[Seconds, Meta(description="…", extra={…})]`.

A described field is a setting: of it come the key in a file, the variable, the flag, the checks and the documentation.
`model/setting_types` lists what `extra` may say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

Kind = Literal["text", "whole", "number", "yes", "path", "texts", "numbers", "names", "counts", "anything"]
"""whole: an integer; yes: true or false; texts, numbers: lists; names: a table of texts; counts: a table of integers;
anything: any table."""

PREFIX = "INTERLINGUA_"

_YES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_WORDS: dict[Kind, str] = {
    "text": "a text", "path": "a path", "whole": "a whole number", "number": "a number", "yes": "true or false",
    "texts": "a list of texts", "numbers": "a list of numbers", "names": "a table of texts",
    "counts": "a table of whole numbers", "anything": "a table",
}  # fmt: skip


class Unsuitable(Exception):
    """The setting does not allow a value; the message says why."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    field: str
    """The name of the field in the struct."""
    type: Any
    kind: Kind
    default: Any
    help: str
    flags: str
    """The flag in the form of its declaration: `--max-x`, or `--x/--no-x`."""
    variable: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    secret: bool = False
    basic: str = ""
    """What the short help says; empty: the setting is not in it."""
    defaults: str = ""
    """The setting names a file with defaults for its section: `module:function` reads that."""

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def parameter(self) -> str:
        """The name of the setting as a Python parameter."""
        return self.path.replace(".", "_")

    @property
    def allowed(self) -> str:
        """Describes the values that the setting allows."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = _WORDS[self.kind]
        if self.least is None:
            return words
        if self.most is not None:
            return f"{words} from {self.least:g} to {self.most:g}"
        return f"{words}, at least {self.least:g}"

    def checked(self, value: Any, *, is_text: bool = False) -> Any:
        """Returns a value in the type of the setting. `is_text`: numbers may be texts. Raises Unsuitable."""
        try:
            converted = msgspec.convert(value, self.type, strict=not is_text, dec_hook=_path_of)
        except msgspec.ValidationError:
            converted = math.nan
        if _is_odd(converted):
            raise Unsuitable(f"must be {self.allowed}" + ("" if self.secret else f", not {shortened(value)}"))
        return converted

    def parsed(self, text: str) -> Any:
        """Returns the value that a variable holds. Raises Unsuitable."""
        match self.kind:
            case "yes":
                return self.checked(_YES.get(text.strip().lower(), text))
            case "texts" | "numbers":
                return self.checked(listed(text), is_text=True)
            case "counts" if text.lstrip().startswith("{"):
                return self.checked(json_of(text))
            case "counts":
                return self.checked(counted(listed(text)), is_text=True)
            case "whole" | "number":
                return self.checked(text.strip(), is_text=True)
        return self.checked(text)


class Entries(msgspec.Struct, frozen=True):
    """A list of tables, such as [[mounts]]. A text stands for an entry with one member alone."""

    path: str
    plain: str  # the member that a text stands for
    flag: str
    help: str
    members: tuple[Setting, ...]
    metavar: str = ""
    basic: str = ""

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def parameter(self) -> str:
        return self.path.replace(".", "_")


def described(type_: type[msgspec.Struct], section: str) -> Iterator[Setting]:
    """Yields the settings of a struct: its fields with a description."""
    for field in msgspec.structs.fields(type_):
        node = inspect.type_info(field.type)
        notes: dict[str, Any] = {}
        text = ""
        if isinstance(node, inspect.Metadata):
            text = (node.extra_json_schema or {}).get("description", "")
            notes, node = node.extra or {}, node.type
        if not text:
            continue
        inside = notes.get("section", section)
        name = notes.get("key", field.name)
        path = f"{inside}.{name}" if inside else name
        shape = _shape(node)
        has_factory = field.default_factory is not msgspec.NODEFAULT
        default = field.default_factory() if has_factory else field.default
        yield Setting(
            path=path, field=field.name, type=field.type, default=None if default is msgspec.NODEFAULT else default,
            help=text, flags=_flags(path, notes.get("flag", ""), shape["kind"]),
            variable=notes.get("env", PREFIX + path.removeprefix("server.").replace(".", "_").upper()),
            metavar=notes.get("metavar", ""), secret=notes.get("secret", False), basic=notes.get("basic", ""),
            defaults=notes.get("defaults", ""), choices=_choices(field.type), **shape,
        )  # fmt: skip


def _flags(path: str, written: str, kind: Kind) -> str:
    if written:
        return written.format(door=path.split(".")[-2] if "." in path else "")
    plain = path.removeprefix("server.").removeprefix("doors.").replace(".", "-").replace("_", "-")
    return f"--{plain}/--no-{plain}" if kind == "yes" else f"--{plain}"


def _shape(node: inspect.Type) -> dict[str, Any]:
    """Returns kind, bounds and choices of a type."""
    match node:
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.UnionType(types=types):
            (inner,) = (one for one in types if not isinstance(one, inspect.NoneType))
            return _shape(inner)
        case inspect.IntType(ge=least, le=most):
            return {"kind": "whole", "least": least, "most": most}
        case inspect.FloatType(ge=least, le=most):
            return {"kind": "number", "least": least, "most": most}
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return {**_shape(item), "kind": "numbers" if isinstance(item, inspect.FloatType) else "texts"}
        case inspect.DictType(value_type=value):
            kinds = {inspect.StrType: "names", inspect.IntType: "counts"}
            return {**_shape(value), "kind": kinds.get(type(value), "anything")}
        case inspect.BoolType():
            return {"kind": "yes"}
        case inspect.CustomType(cls=cls) if cls is Path:
            return {"kind": "path"}
    return {"kind": "text"}


def _choices(annotation: Any) -> tuple[str, ...]:
    """Returns the values of a Literal, in the order in which they are written."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return _choices(get_args(annotation)[0]) if get_origin(annotation) is Annotated else ()


def _path_of(type_: type, value: Any) -> Any:
    if type_ is not Path or not isinstance(value, str):
        raise TypeError
    return Path(value)


def _is_odd(value: Any) -> bool:
    """Returns whether a value is not a finite number, or has a NUL character."""
    if isinstance(value, list | tuple):
        return any(map(_is_odd, value))
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, str | Path) and "\0" in str(value)


# -- lists and tables in a variable ---------------------------------------------------------------------------


def listed(text: str) -> list[Any]:
    """Reads a list: texts separated by commas, or JSON. Raises Unsuitable."""
    if text.lstrip().startswith("["):
        return list(json_of(text))
    return [part for piece in text.split(",") if (part := piece.strip())]


def counted(texts: list[Any]) -> dict[str, str]:
    """Reads a table of numbers, whose members are written NAME=N. What is written otherwise becomes no number."""
    pairs = [str(text).rpartition("=") for text in texts]
    return {name.strip(): number.strip() for name, _, number in pairs}


def json_of(text: str) -> Any:
    """Reads JSON. Raises Unsuitable."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unsuitable(f"begins with {text.lstrip()[0]} and is not valid JSON: {error}") from None


def shortened(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
