"""The agent decorator: a Python function becomes an agent with a card. What is wrong is said here, at definition."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec

from ..model import values
from ..model.card import AgentCard, ErrorDefinition, Schema, Skill
from ..model.errors import AgentError, DefinitionError, Invalid, InvalidInput, InvalidOutput
from ..model.schemas import Validator, check_refs_local
from .codec import Codec, Params
from .context import Context, SyncContext
from .questions import Question, QuestionCodec, question_codec

P = ParamSpec("P")
R = TypeVar("R")
Shape = Literal["async", "async_generator", "sync", "sync_generator"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
_TEXT_OUTPUT: Schema = {"type": "object", "properties": {"text": {"type": "string"}}}
_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)


class Agent(Generic[P, R]):
    """A card and what runs behind it. Calling it calls the function, as if it had not been decorated."""

    def __init__(
        self,
        card: AgentCard,
        fn: Callable[P, R],
        *,
        shape: Shape,
        params: Params | None = None,
        ctx_param: str | None = None,
        ctx_type: type[Context[Any, Any]] | type[SyncContext[Any, Any]] = Context,
        output: OutputCodec | None = None,
        state: Codec | None = None,
        config: Codec | None = None,
        questions: list[QuestionCodec] | None = None,
        errors: list[type[AgentError]] | None = None,
        retries: int = 3,
        timeout: float | None = None,
        process: bool = False,
        parkable: bool = True,
    ) -> None:
        self.card = card
        self.fn = fn
        self.shape: Shape = shape
        self.params = params
        self.ctx_param = ctx_param
        self.ctx_type = ctx_type
        self.output = output
        self.state = state
        self.config = config
        self.questions = {codec.cls: codec for codec in questions or []}
        self.errors = {error.code: error for error in errors or []}
        self.retries = retries
        self.timeout = timeout
        self.process = process
        self.parkable = parkable and retries > 0
        self.digest = values.digest(msgspec.to_builtins(card))
        self.check_input = Validator(card.input, what="input")
        self.check_output = Validator(card.output, what="output")
        self.check_config = Validator(card.config, what="config") if card.config is not None else None
        self.check_state = Validator(card.state, what="state") if card.state is not None else None
        self.__name__ = getattr(fn, "__name__", card.name)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.card.key}>"

    def bind(self, input_: dict[str, Any], ctx: Any) -> dict[str, Any]:
        """The keyword arguments of a call. The input has been checked against the schema."""
        kwargs = self.params.decode(input_, InvalidInput) if self.params is not None else {"input": input_}
        if self.ctx_param is not None:
            kwargs[self.ctx_param] = ctx
        return kwargs


class OutputCodec:
    """What an agent returns or yields, as a JSON object: text under `text`, other plain values under `value`."""

    def __init__(self, annotation: Any, *, what: str, yields: bool) -> None:
        self.codec: Codec | None = None
        self.text_field: str | None = None
        self.wrap: str | None = None  # the member that a plain value goes under
        if annotation is inspect.Parameter.empty or annotation is Any:
            self.schema = dict(_TEXT_OUTPUT) if yields or annotation is not Any else {"type": "object"}
            self.text_field = "text"
            return
        if annotation is None or annotation is type(None):
            self.schema = {"type": "object"}
            return
        self.codec = Codec(annotation, what=what)
        if annotation is str:
            self.wrap, self.text_field = "text", "text"
        elif not self.codec.is_object:
            self.wrap = "value"
        if self.wrap is None:
            self.schema = dict(self.codec.schema)
            self.text_field = text_field(self.schema)
        else:
            inner = dict(self.codec.schema)
            definitions = inner.pop("$defs", None)
            self.schema = {"type": "object", "properties": {self.wrap: inner}, "required": [self.wrap]}
            if definitions:
                self.schema["$defs"] = definitions

    def encode(self, value: Any) -> dict[str, Any]:
        """A returned value or a yielded delta, as a JSON object."""
        if type(value) is str:
            if self.wrap == "text" or self.codec is None:
                return {"text": value}
            if self.wrap is None and self.text_field is not None:
                return {self.text_field: value}
        if value is None:
            return {}
        if isinstance(value, bytes | bytearray) and (self.codec is None or self.codec.type is not bytes):
            raise InvalidOutput("the agent gave bytes; give text, or a FilePart through ctx.artifact")
        if isinstance(value, dict) and self.wrap is None:
            return value if type(value) is dict else dict(value)
        if self.codec is not None:
            encoded = self.codec.encode(value)
        else:
            try:
                encoded = msgspec.to_builtins(value)
            except (TypeError, ValueError, msgspec.ValidationError, RecursionError) as error:
                raise InvalidOutput(
                    f"the agent gave {type(value).__name__}, which is not JSON ({error}); annotate the function with "
                    "the type that it returns or yields"
                ) from error
        if self.wrap is not None:
            return {self.wrap: encoded}
        if isinstance(encoded, dict):
            return encoded
        if self.codec is None and isinstance(encoded, bool | int | float | list):
            return {"value": encoded}
        raise InvalidOutput(f"the agent gave {type(value).__name__} where its output is an object")


def text_field(schema: Schema) -> str | None:
    """The member that carries plain text: `text`, `message`, `content`, or the only string there is."""
    properties = schema.get("properties", {})
    strings = [
        name for name, member in properties.items() if isinstance(member, dict) and member.get("type") == "string"
    ]
    for usual in ("text", "message", "content", "prompt"):
        if usual in strings:
            return usual
    return strings[0] if len(strings) == 1 else None


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
) -> Any:
    """Make an agent of a function.

    Parameters are the input's properties, annotations become JSON Schemas, the docstring is the description. A
    parameter annotated `il.Context` (`il.SyncContext` in a plain `def`) receives the context. Generators stream: each
    yield extends the output.

    asks: the questions it may ask. errors: errors of its own. retries: how many times it may be entered again after a
    crash without progress; 0 for an agent that must never be repeated. timeout: seconds of running. process: run it in
    a worker process (for work that keeps a CPU busy).
    """
    locals_ = sys._getframe(1).f_locals

    def define(fn: Callable[P, R]) -> Agent[P, R]:
        return _define(
            fn, locals_, name=name, version=version, description=description, asks=asks or [], errors=errors or [],
            skills=skills or [], metadata=metadata or {}, input_text=input_text, output_text=output_text,
            retries=retries, timeout=timeout, process=process,
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
) -> Agent[P, R]:
    if isinstance(fn, Agent):
        raise DefinitionError(f"{fn!r} is an agent already; decorate the function once")
    if not inspect.isfunction(fn):
        raise DefinitionError(f"@agent makes an agent of a function, and {fn!r} is none")
    name = name or fn.__name__
    where = f"agent {name} ({fn.__code__.co_filename}:{fn.__code__.co_firstlineno})"
    if not _NAME.fullmatch(name):
        raise DefinitionError(f"{where}: {name!r} is not a name; use letters, digits, dots, dashes and underscores")
    if not _VERSION.fullmatch(version):
        raise DefinitionError(f"{where}: {version!r} is not a version; write it like 1.2.0")
    if retries < 0:
        raise DefinitionError(f"{where}: retries is {retries}; it is a count, and 0 means never to repeat it")
    if timeout is not None and not timeout > 0:
        raise DefinitionError(f"{where}: timeout is {timeout}; it is a number of seconds greater than 0")
    shape = _shape(fn)
    hints = _hints(fn, locals_, where)
    ctx_param: str | None = None
    ctx_type: type[Context[Any, Any]] | type[SyncContext[Any, Any]] = Context
    state: Codec | None = None
    config: Codec | None = None
    codecs: dict[str, Codec] = {}
    required: list[str] = []
    open_ = False
    for parameter in inspect.signature(fn).parameters.values():
        hint = hints.get(parameter.name, inspect.Parameter.empty)
        if _is_context(hint) or (parameter.name == "ctx" and hint is inspect.Parameter.empty):
            ctx_param = parameter.name
            ctx_type = SyncContext if shape.startswith("sync") else Context
            state, config = _context_types(hint, shape, where)
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ = True
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise DefinitionError(
                f"{where}: parameter {parameter.name!r} has no name that an input could use; make it a normal parameter"
            )
        type_ = Any if hint is inspect.Parameter.empty else hint
        codec = codecs[parameter.name] = Codec(type_, what=f"{where}: parameter {parameter.name!r}")
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        else:
            _put_default(codec, parameter.default)
    if process:
        _check_process(fn, shape, ctx_param, where)
    params = Params(codecs, required, open_=open_)
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
        input_text=_named_text(input_text, params.schema, where, "input_text"),
        output_text=_named_text(output_text, output.schema, where, "output_text", output.text_field),
        streams=shape.endswith("generator"),
        questions=[codec.describe() for codec in questions],
        errors=[_error_definition(error, where) for error in errors],
        skills=skills,
        metadata=metadata,
    )
    for what, schema in (("input", card.input), ("output", card.output)):
        check_refs_local(schema, f"{what} of {where}")
    made: Agent[P, R] = Agent(
        card, fn, shape=shape, params=params, ctx_param=ctx_param, ctx_type=ctx_type, output=output, state=state,
        config=config, questions=questions, errors=errors, retries=retries, timeout=timeout, process=process,
    )  # fmt: skip
    _refuse_twin(fn, made, where)
    return made


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


def _put_default(codec: Codec, default: Any) -> None:
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


def _named_text(given: str | None, schema: Schema, where: str, option: str, found: str | None = None) -> str | None:
    if given is None:
        return found or text_field(schema)
    if given not in schema.get("properties", {}):
        known = ", ".join(schema.get("properties", {})) or "none"
        raise DefinitionError(f"{where}: {option}={given!r} names no member of the schema (there are: {known})")
    return given


def _question(cls: Any, where: str) -> QuestionCodec:
    if not (isinstance(cls, type) and issubclass(cls, Question)):
        raise DefinitionError(f"{where}: {cls!r} in `asks` is not a question; write `class X(il.Question[Answer])`")
    return question_codec(cls)


def _check_asks(fn: types.FunctionType, asks: list[type[Question[Any]]], locals_: dict[str, Any], where: str) -> None:
    """Find questions that the function's code names and `asks` does not: clients would meet them unprepared."""
    for cls in _questions_named(fn.__code__, {**fn.__globals__, **locals_}):
        if cls not in asks:
            listed = ", ".join(c.__name__ for c in [*asks, cls])
            raise DefinitionError(
                f"{where}: it uses question {cls.__name__}, which `asks` does not list; write asks=[{listed}]"
            )


def _questions_named(code: types.CodeType, scope: dict[str, Any]) -> Iterator[type[Question[Any]]]:
    modules = [scope[name] for name in code.co_names if isinstance(scope.get(name), types.ModuleType)]
    for name in (*code.co_names, *code.co_freevars):
        for found in (scope.get(name), *(getattr(module, name, None) for module in modules)):
            if isinstance(found, type) and issubclass(found, Question) and found is not Question:
                yield found
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


def _refuse_twin(fn: types.FunctionType, made: Agent[Any, Any], where: str) -> None:
    """Two agents of one file with the same name and version: the second would silently win."""
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


class Registry:
    """The agents whose code this process has."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent[..., Any]] = {}
        self._newest: dict[str, Agent[..., Any] | None] = {}
        self.listeners: list[Callable[[], None]] = []

    def add(self, agent: Agent[..., Any]) -> None:
        key = agent.card.key
        if self._agents.get(key, agent) is not agent:
            raise DefinitionError(f"there are two agents {key}; give one of them another name= or version=")
        self._agents[key] = agent
        self._tell()

    def remove(self, key: str) -> None:
        if self._agents.pop(key, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._newest.clear()
        for listener in self.listeners:
            listener()

    def find(self, name: str, version: str | None = None) -> Agent[..., Any] | None:
        """By name and version; without a version, the newest."""
        if version is not None:
            return self._agents.get(f"{name}@{version}")
        if name not in self._newest:
            found = [agent for agent in self._agents.values() if agent.card.name == name]
            if not found:
                return None
            self._newest[name] = max(found, key=lambda agent: _version_key(agent.card.version))
        return self._newest[name]

    def keys(self) -> list[str]:
        return list(self._agents)

    def __iter__(self) -> Iterator[Agent[..., Any]]:
        return iter(list(self._agents.values()))

    def __len__(self) -> int:
        return len(self._agents)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"[.+-]", version)]
