"""The agent decorator: turns a Python function into an agent with a card. Mistakes raise at the definition."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, overload

from ..model.card import AgentCard, ErrorDefinition, Schema, Skill
from ..model.errors import AgentError, DefinitionError, Invalid
from ..model.schemas import check_refs_local
from .agents.agent import Agent, OutputCodec, Shape, text_field
from .agents.codec import Codec, Params
from .agents.question_types import Question, QuestionCodec, question_codec
from .handler.context import Context, SyncContext

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)


@overload
def agent(fn: Callable[P, R], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    version: str = "0.1.0",
    description: str | None = None,
    asks: list[type[Question[Any]]] | None = None,
    errors: list[type[AgentError]] | None = None,
    skills: list[Skill] | None = None,
    metadata: dict[str, Any] | None = None,
    input_text: str | None = None,
    output_text: str | None = None,
    retries: int = 3,
    timeout: float | None = None,
    process: bool = False,
    max_running: int | None = None,
) -> Callable[[Callable[P, R]], Agent[P, R]]: ...
def agent(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "0.1.0",
    description: str | None = None,
    asks: list[type[Question[Any]]] | None = None,
    errors: list[type[AgentError]] | None = None,
    skills: list[Skill] | None = None,
    metadata: dict[str, Any] | None = None,
    input_text: str | None = None,
    output_text: str | None = None,
    retries: int = 3,
    timeout: float | None = None,
    process: bool = False,
    max_running: int | None = None,
) -> Any:
    """Makes an agent of a function.

    Parameters are the input's properties, annotations become JSON Schemas, the docstring is the description. A
    parameter annotated `il.Context` (`il.SyncContext` in a plain `def`) receives the context. Generators stream: each
    yield extends the output.

    asks: the questions that it may ask. errors: the errors that it declares. retries: the number of crashes without
    progress after which a run fails, at least two, because the first crash may have another cause; 0 for an agent that
    must never be repeated. timeout: seconds of execution. process: execute it in a worker process (for work that keeps
    a CPU busy). max_running: the most runs that execute at once per process; the rest queue.
    """
    locals_ = sys._getframe(1).f_locals

    def define(fn: Callable[P, R]) -> Agent[P, R]:
        return _define(
            fn, locals_, name=name, version=version, description=description, asks=asks or [], errors=errors or [],
            skills=skills or [], metadata=metadata or {}, input_text=input_text, output_text=output_text,
            retries=retries, timeout=timeout, process=process, max_running=max_running,
        )  # fmt: skip

    return define if fn is None else define(fn)


def _define(
    fn: Callable[P, R],
    locals_: dict[str, Any],
    *,
    name: str | None,
    version: str,
    description: str | None,
    asks: list[type[Question[Any]]],
    errors: list[type[AgentError]],
    skills: list[Skill],
    metadata: dict[str, Any],
    input_text: str | None,
    output_text: str | None,
    retries: int,
    timeout: float | None,
    process: bool,
    max_running: int | None,
) -> Agent[P, R]:
    if isinstance(fn, Agent):
        raise DefinitionError(f"{fn!r} is an agent already; decorate the function once")
    if not inspect.isfunction(fn):
        raise DefinitionError(f"@agent makes an agent of a function, and {fn!r} is none")
    name = name or fn.__name__
    where = f"agent {name} ({fn.__code__.co_filename}:{fn.__code__.co_firstlineno})"
    _check_names(name, version, where)
    _check_limits(retries, timeout, max_running, where)
    shape = _shape(fn)
    hints = _hints(fn, locals_, where)
    signature = _read_parameters(fn, shape, hints, where)
    ctx_param, state, config = signature.ctx_param, signature.state, signature.config
    if process:
        _check_process(fn, shape, ctx_param, where)
    params = Params(signature.codecs, signature.required, open_=signature.open_)
    output = OutputCodec(
        _output_type(hints.get("return", inspect.Parameter.empty), shape), what=f"{where}: what it returns",
        yields=shape.endswith("generator"),
    )  # fmt: skip
    questions = [_question(cls, where) for cls in asks]
    _check_asks(fn, asks, locals_, where)
    card = AgentCard(
        name=name,
        version=version,
        description=description if description is not None else inspect.getdoc(fn) or "",
        input=params.schema,
        output=output.schema,
        config=_object_schema(config, "config", where),
        state=_object_schema(state, "state", where),
        input_text=_text_member(input_text, params.schema, where, "input_text"),
        output_text=_text_member(output_text, output.schema, where, "output_text", output.text_field),
        streams=shape.endswith("generator"),
        questions=[codec.describe() for codec in questions],
        errors=[_error_definition(error, where) for error in errors],
        skills=skills,
        metadata=metadata,
    )
    for what, schema in (("input", card.input), ("output", card.output)):
        check_refs_local(schema, f"{what} of {where}")
    agent_: Agent[P, R] = Agent(
        card, fn, shape=shape, params=params, ctx_param=ctx_param, ctx_type=signature.ctx_type, output=output,
        state=state,
        config=config, questions=questions, errors=errors, retries=retries, timeout=timeout, process=process,
        max_running=max_running,
    )  # fmt: skip
    _check_unique(fn, agent_, where)
    return agent_


def _check_names(name: str, version: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise DefinitionError(f"{where}: {name!r} is not a name; use letters, digits, dots, dashes and underscores")
    if len(name) > _LONGEST_NAME or len(version) > _LONGEST_NAME:
        raise DefinitionError(f"{where}: name and version have at most {_LONGEST_NAME} characters each")
    if not _VERSION.fullmatch(version):
        raise DefinitionError(f"{where}: {version!r} is not a version; write it like 1.2.0")


def _check_limits(retries: int, timeout: float | None, max_running: int | None, where: str) -> None:
    if retries < 0:
        raise DefinitionError(f"{where}: retries is {retries}; it is a count, and 0 means never to repeat it")
    if timeout is not None and not timeout > 0:
        raise DefinitionError(f"{where}: timeout is {timeout}; it is a number of seconds greater than 0")
    if max_running is not None and max_running < 1:
        raise DefinitionError(f"{where}: max_running is {max_running}; it is a count, at least 1")


@dataclass
class _Signature:
    """The parameters of an agent's function: those of its input, and its context."""

    codecs: dict[str, Codec] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    open_: bool = False
    ctx_param: str | None = None
    ctx_type: type[Context[Any, Any]] | type[SyncContext[Any, Any]] = Context
    state: Codec | None = None
    config: Codec | None = None


def _read_parameters(fn: types.FunctionType, shape: Shape, hints: dict[str, Any], where: str) -> _Signature:
    signature = _Signature()
    for parameter in inspect.signature(fn).parameters.values():
        hint = hints.get(parameter.name, inspect.Parameter.empty)
        if _is_context(hint) or (parameter.name == "ctx" and hint is inspect.Parameter.empty):
            signature.ctx_param = parameter.name
            signature.ctx_type = SyncContext if shape.startswith("sync") else Context
            signature.state, signature.config = _context_types(hint, shape, where)
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            signature.open_ = True
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise DefinitionError(
                f"{where}: parameter {parameter.name!r} has no name that an input could use; make it a normal parameter"
            )
        type_ = Any if hint is inspect.Parameter.empty else hint
        codec = signature.codecs[parameter.name] = Codec(type_, what=f"{where}: parameter {parameter.name!r}")
        if parameter.default is inspect.Parameter.empty:
            signature.required.append(parameter.name)
        else:
            _set_default(codec, parameter.default)
    return signature


def _shape(fn: Callable[..., Any]) -> Shape:
    if inspect.isasyncgenfunction(fn):
        return "async_generator"
    if asyncio.iscoroutinefunction(fn) or inspect.iscoroutinefunction(fn):
        return "async"
    return "sync_generator" if inspect.isgeneratorfunction(fn) else "sync"


def _hints(fn: Callable[..., Any], locals_: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, localns=locals_, include_extras=True)
    except NameError as error:
        raise DefinitionError(f"{where}: {error} in an annotation; define or import it before the agent") from error
    except TypeError as error:
        raise DefinitionError(f"{where}: an annotation is not a type: {error}") from error


def _is_context(hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, Context | SyncContext)


def _context_types(hint: Any, shape: Shape, where: str) -> tuple[Codec | None, Codec | None]:
    cls = typing.get_origin(hint) or hint
    sync = shape.startswith("sync")
    if cls is not inspect.Parameter.empty and issubclass(cls, SyncContext) is not sync:
        right, kind = ("il.SyncContext", "a plain def") if sync else ("il.Context", "an async def")
        raise DefinitionError(f"{where}: {kind} takes {right}, and its context is annotated {cls.__name__}")
    arguments = typing.get_args(hint)
    codecs: list[Codec | None] = []
    for kind, argument in zip(("state", "config"), (*arguments, None, None), strict=False):
        plain = argument is None or argument is type(None) or argument is Any or isinstance(argument, TypeVar)
        codecs.append(None if plain else Codec(argument, what=f"{where}: its {kind}"))
    return codecs[0], codecs[1]


def _object_schema(codec: Codec | None, kind: str, where: str) -> Schema | None:
    if codec is None:
        return None
    if not codec.is_object:
        raise DefinitionError(f"{where}: its {kind} must be an object (a dataclass, Struct, TypedDict or model)")
    if kind == "state":
        try:
            codec.decode({}, Invalid)
        except Invalid as error:
            raise DefinitionError(
                f"{where}: its state starts out empty, so every field needs a default ({error})"
            ) from error
    return codec.schema


def _set_default(codec: Codec, default: Any) -> None:
    try:
        codec.schema = {**codec.schema, "default": codec.encode(default)}
    except Invalid as error:
        raise DefinitionError(f"{codec.what}: its default {default!r} is not JSON") from error


def _output_type(hint: Any, shape: Shape) -> Any:
    if not shape.endswith("generator") or hint is inspect.Parameter.empty:
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _ITERATORS and arguments:
        if origin is Generator and len(arguments) == 3 and arguments[2] not in (None, type(None)):
            return arguments[2]
        return arguments[0]
    return inspect.Parameter.empty


def _text_member(name: str | None, schema: Schema, where: str, option: str, default: str | None = None) -> str | None:
    if name is None:
        return default or text_field(schema)
    if name not in schema.get("properties", {}):
        known = ", ".join(schema.get("properties", {})) or "none"
        raise DefinitionError(f"{where}: {option}={name!r} names no member of the schema (there are: {known})")
    return name


def _question(cls: Any, where: str) -> QuestionCodec:
    if not (isinstance(cls, type) and issubclass(cls, Question)):
        raise DefinitionError(f"{where}: {cls!r} in `asks` is not a question; write `class X(il.Question[Answer])`")
    return question_codec(cls)


def _check_asks(fn: types.FunctionType, asks: list[type[Question[Any]]], locals_: dict[str, Any], where: str) -> None:
    """Raises for a question that the function's code uses and `asks` does not list, as clients would not expect it."""
    for cls in _questions_named(fn.__code__, {**fn.__globals__, **locals_}):
        if cls not in asks:
            listed = ", ".join(c.__name__ for c in [*asks, cls])
            raise DefinitionError(
                f"{where}: it uses question {cls.__name__}, which `asks` does not list; write asks=[{listed}]"
            )


def _questions_named(code: types.CodeType, scope: dict[str, Any]) -> Iterator[type[Question[Any]]]:
    modules = [scope[name] for name in code.co_names if isinstance(scope.get(name), types.ModuleType)]
    for name in (*code.co_names, *code.co_freevars):
        for value in (scope.get(name), *(getattr(module, name, None) for module in modules)):
            if isinstance(value, type) and issubclass(value, Question) and value is not Question:
                yield value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _questions_named(constant, scope)


def _error_definition(error: Any, where: str) -> ErrorDefinition:
    if not (isinstance(error, type) and issubclass(error, AgentError)):
        raise DefinitionError(f"{where}: {error!r} in `errors` is not a subclass of il.AgentError")
    if "code" not in error.__dict__:
        raise DefinitionError(f'{where}: error {error.__name__} has no code of its own; write `code = "…"` in it')
    details = getattr(error, "Details", None)
    schema = None if details is None else Codec(details, what=f"{where}: the details of {error.__name__}").schema
    return ErrorDefinition(error.code, inspect.getdoc(error) or error.__name__, error.transient, schema)


def _check_process(fn: types.FunctionType, shape: Shape, ctx_param: str | None, where: str) -> None:
    if not shape.startswith("sync"):
        raise DefinitionError(f"{where}: process=True is for plain functions; write `def`, not `async def`")
    if ctx_param is not None:
        raise DefinitionError(
            f"{where}: process=True runs in another process, where there is no context; drop {ctx_param!r}"
        )
    if "<locals>" in fn.__qualname__:
        raise DefinitionError(
            f"{where}: process=True needs a function at the top of a file, so that the other process finds it"
        )


def _check_unique(fn: types.FunctionType, made: Agent[Any, Any], where: str) -> None:
    """Raises for two agents of one file with the same name and version: the second would silently win."""
    for other in fn.__globals__.values():
        if (
            isinstance(other, Agent)
            and other.card.key == made.card.key
            and isinstance(other.fn, types.FunctionType)
            and other.fn.__globals__ is fn.__globals__
            and other.fn.__code__.co_firstlineno != fn.__code__.co_firstlineno
        ):
            raise DefinitionError(
                f"{where}: line {other.fn.__code__.co_firstlineno} defines {made.card.key} already; give one of them "
                "another name= or version="
            )
