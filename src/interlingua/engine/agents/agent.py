"""Agents: a card with its handler, and the registry of the agents of this process."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from ...model import json_values
from ...model.card import AgentCard, Schema
from ...model.errors import AgentError, Conflict, DefinitionError, InvalidInput, InvalidOutput
from ...model.run_identity import Origin, check_project, module_source, queue
from ...model.schemas import Validator
from .code_digest import code_digest
from .codec import Codec, Params
from .logins import Login
from .question_types import QuestionCodec

P = ParamSpec("P")
R = TypeVar("R")
Shape = Literal["async", "async_generator", "sync", "sync_generator"]

_TEXT_OUTPUT: Schema = {"type": "object", "properties": {"text": {"type": "string"}}}


class Agent(Generic[P, R]):
    """A card with its handler. Calling the agent calls the function, as if it were not decorated."""

    here = True  # the code is in this process
    code = ""  # digest of the code, set at registration

    def __init__(
        self,
        card: AgentCard,
        fn: Callable[P, R],
        *,
        shape: Shape,
        params: Params | None = None,
        ctx_param: str | None = None,
        ctx_type: Callable[..., Any] | None = None,
        output: OutputCodec | None = None,
        state: Codec | None = None,
        config: Codec | None = None,
        questions: list[QuestionCodec] | None = None,
        errors: list[type[AgentError]] | None = None,
        retries: int = 3,
        timeout: float | None = None,
        process: bool = False,
        parkable: bool = True,
        on_cancel: Callable[[Any], Awaitable[None]] | None = None,
        max_running: int | None = None,
        source: str = "",
    ) -> None:
        """Creates an agent.

        `ctx_type` makes the context of a handler from its run, state and config; by default a `Context`. `source` is
        the place of the code, as in `run_identity`; by default the module of the function.
        """
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
        self.on_cancel = on_cancel
        self.max_running = max_running
        self.source = source or module_source(_module_of(fn))
        self.digest = json_values.digest(msgspec.to_builtins(card))
        self.check_input = Validator(card.input, what="input")
        self.check_output = Validator(card.output, what="output")
        self.check_config = Validator(card.config, what="config") if card.config is not None else None
        self.check_state = Validator(card.state, what="state") if card.state is not None else None
        self.reads_history = ctx_param is not None  # the earlier messages of its thread are loaded for it
        self.login: Login | None = None  # if its user must log in before it works
        # For a mounted agent: checks that the remote agent exists, if loading it again would leave a trace there.
        self.reach: Callable[[], Awaitable[None]] | None = None
        # Closes the connection or the process that it shares with the other agents of its mount.
        self.let_go: Callable[[], Awaitable[None]] | None = None
        # Calls back when that connection or process ends by itself, or when the agents of the mount may have changed.
        self.watch: Callable[[Callable[[], None]], None] | None = None
        # For a mounted agent whose connection is kept: lists the agents of the mount again over that connection.
        self.relist: Callable[[], Awaitable[list[Agent[..., Any]]]] | None = None
        # For an agent without a connection between runs: checks that it is reachable, and raises if not.
        self.try_out: Callable[[], Awaitable[None]] | None = None
        # For a server that finds its runs by id: makes an agent that continues the run of an id, and takes any
        # input.
        self.attach: Callable[[str], Agent[..., Any]] | None = None
        # For a mounted agent without `attach`: the reason why its wire cannot continue a run.
        self.no_attach = ""
        # Called with the run's id on the remote server once it is known, possibly more than once.
        self.on_remote_run: Callable[[str], None] | None = None
        self.__name__ = getattr(fn, "__name__", card.name)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    @property
    def available(self) -> bool:
        """True if a process can run it."""
        return True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.card.key}>"

    def bind(self, input_: dict[str, Any], ctx: Any) -> dict[str, Any]:
        """Builds the keyword arguments of a call. The input has been checked against the schema."""
        kwargs = self.params.decode(input_, InvalidInput) if self.params is not None else {"input": input_}
        if self.ctx_param is not None:
            kwargs[self.ctx_param] = ctx
        return kwargs


def _module_of(fn: Callable[..., Any]) -> str:
    """The module of a function; for a program's main file, the name by which other modules import it."""
    module: str = getattr(fn, "__module__", None) or "unknown"
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file is not None else module


class OutputCodec:
    """Encodes returned and yielded values as a JSON object: text under `text`, other plain values under `value`."""

    def __init__(self, annotation: Any, *, what: str, yields: bool) -> None:
        self.codec: Codec | None = None
        self.text_field: str | None = None
        self.wrap: str | None = None  # the member for a plain value
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
        """Encodes a returned value or a yielded delta as a JSON object."""
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
                encoded = json_values.to_plain(value)
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
    """The member that carries plain text: `text`, `message`, `content`, `prompt`, or the only string."""
    properties = schema.get("properties", {})
    strings = [
        name for name, member in properties.items() if isinstance(member, dict) and member.get("type") == "string"
    ]
    for usual in ("text", "message", "content", "prompt"):
        if usual in strings:
            return usual
    return strings[0] if len(strings) == 1 else None


class NameTaken(DefinitionError):
    """Another agent has the same name and version."""

    def __init__(self, key: str) -> None:
        super().__init__(f"there are two agents {key}; give one of them another name= or version=")


class Registry:
    """The agents whose code this process has, and the known agents of other processes."""

    def __init__(self, project: str = "", root: Path | None = None) -> None:
        self._queues: dict[str, Agent[..., Any]] | None = None  # by queue: the agents whose runs can execute here
        self.project = project
        self.refusal: Conflict | None = None  # the reason why no agent may be added
        self.root = root  # the folder of the project that the agents belong to
        self._agents: dict[str, Agent[..., Any]] = {}
        self._hidden: dict[str, Agent[..., Any]] = {}
        self._retired: dict[str, Agent[..., Any]] = {}  # by queue; not found any more, but their runs continue
        self._elsewhere: Mapping[str, Agent[..., Any]] = {}
        self._newest: dict[str, Agent[..., Any] | None] = {}
        self.listeners: list[Callable[[], None]] = []
        self.checks: list[Callable[[AgentCard], list[str]]] = []  # each returns the problems of a card

    def add_check(self, check: Callable[[AgentCard], list[str]]) -> None:
        """Applies a check to all present and future agents."""
        for agent in self._agents.values():
            _apply_check(agent.card, check)
        self.checks.append(check)

    def add(self, agent: Agent[..., Any], *, hidden: bool = False) -> None:
        """Registers an agent. A `hidden` one is not listed; only the engine runs it."""
        self._check_open()
        key = agent.card.key
        known = self._hidden if hidden else self._agents
        if known.get(key, agent) is not agent:
            raise NameTaken(key)
        for check in () if hidden else self.checks:
            _apply_check(agent.card, check)
        self.give_code(agent)
        known[key] = agent
        self._changed()

    def _check_open(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def give_code(self, agent: Agent[..., Any]) -> None:
        """Sets the digest of the agent's code from the current files."""
        agent.code = agent.code or code_digest(agent, self.root)

    def remove(self, key: str) -> None:
        if self._agents.pop(key, None) is not None:
            self._changed()

    def exchange(
        self,
        gone: Iterable[Agent[..., Any]],
        come: Iterable[Agent[..., Any]],
        *,
        hidden_gone: Iterable[Agent[..., Any]] = (),
        hidden_come: Iterable[Agent[..., Any]] = (),
    ) -> None:
        """Replaces agents at once; if one of the new agents is refused, nothing changes.

        Active runs keep the code that they started with. A resumed run gets the new code of its agent; if the agent was
        removed, its last code.
        """
        come, hidden_come = list(come), list(hidden_come)
        if come or hidden_come:
            self._check_open()
        for agent in (*come, *hidden_come):
            self.give_code(agent)
        agents = _after_exchange(self._agents, gone, come)
        hidden = _after_exchange(self._hidden, hidden_gone, hidden_come)
        for agent in come:
            for check in self.checks:
                _apply_check(agent.card, check)
        served = {self.queue(agent) for agent in (*agents.values(), *hidden.values())}
        for agent in (*self._hidden.values(), *self._agents.values()):
            if (queue_ := self.queue(agent)) not in served:
                self._retired[queue_] = agent
        self._agents, self._hidden = agents, hidden
        self._changed()

    def set_elsewhere(self, agents: Mapping[str, Agent[..., Any]], *, tell: bool) -> None:
        """Sets the agents of other processes. An agent that is also here is found as the local one."""
        self._elsewhere = agents
        self._newest.clear()
        if tell:
            self._changed()

    def _changed(self) -> None:
        self._newest.clear()
        self._queues = None
        for listener in self.listeners:
            listener()

    def find(self, name: str, version: str | None = None) -> Agent[..., Any] | None:
        """Finds an agent by name and version; without a version, the newest available one."""
        if version is not None:
            key = f"{name}@{version}"
            return self._agents.get(key) or self._elsewhere.get(key)
        if name not in self._newest:
            candidates = [agent for agent in self if agent.card.name == name]
            if not candidates:
                return None
            self._newest[name] = max(candidates, key=lambda agent: (agent.available, version_key(agent.card.version)))
        return self._newest[name]

    def code(self, name: str, version: str) -> Agent[..., Any] | None:
        """The local agent of this name and version, also a hidden or retired one."""
        key = f"{name}@{version}"
        agent_ = self._agents.get(key) or self._hidden.get(key)
        return agent_ or next((agent for agent in self._retired.values() if agent.card.key == key), None)

    # -- origins ------------------------------------------------------------------------------------------

    @property
    def project(self) -> str:
        return self._project

    @project.setter
    def project(self, project: str) -> None:
        self._project = check_project(project)
        self._queues = None

    def origin(self, agent: Agent[..., Any]) -> Origin:
        return Origin(self._project, agent.source)

    def queue(self, agent: Agent[..., Any]) -> str:
        """The queue in which runs of this agent wait for code of its origin."""
        return queue(self.origin(agent), agent.card.name, agent.card.version)

    def serving(self, queue: str) -> Agent[..., Any] | None:
        """The agent that executes the runs of a queue, also a hidden or retired one."""
        return self._agents_by_queue().get(queue)

    def queues(self) -> list[str]:
        """All queues whose runs can execute here, also those of hidden and retired agents."""
        return list(self._agents_by_queue())

    def _agents_by_queue(self) -> Mapping[str, Agent[..., Any]]:
        if self._queues is None:
            here = (*self._hidden.values(), *self._agents.values())
            self._queues = {**self._retired, **{self.queue(agent): agent for agent in here}}
        return self._queues

    def codes(self) -> dict[str, str]:
        """The digest of the code for each queue whose runs can execute here."""
        return {queue: agent.code for queue, agent in self._agents_by_queue().items()}

    def hidden(self) -> list[Agent[..., Any]]:
        return list(self._hidden.values())

    def own(self) -> list[Agent[..., Any]]:
        """The agents whose code is here."""
        return list(self._agents.values())

    def __iter__(self) -> Iterator[Agent[..., Any]]:
        return iter([*self._agents.values(), *(a for key, a in self._elsewhere.items() if key not in self._agents)])

    def __len__(self) -> int:
        return len(self._agents) + sum(key not in self._agents for key in self._elsewhere)


def _after_exchange(
    known: dict[str, Agent[..., Any]], gone: Iterable[Agent[..., Any]], come: Iterable[Agent[..., Any]]
) -> dict[str, Agent[..., Any]]:
    """Returns the agents after an exchange. A replacement keeps the position: a default picks the first agent."""
    leaving = {id(agent) for agent in gone}
    new: dict[str, Agent[..., Any]] = {}
    for agent in come:
        key = agent.card.key
        before = new.get(key) or known.get(key)
        if before is not None and before is not agent and id(before) not in leaving:
            raise NameTaken(key)
        new[key] = agent
    stay = {key: new.get(key, agent) for key, agent in known.items() if key in new or id(agent) not in leaving}
    return {**stay, **new}


def _apply_check(card: AgentCard, check: Callable[[AgentCard], list[str]]) -> None:
    problems = check(card)
    if problems:
        raise DefinitionError(f"agent {card.key} cannot be registered: {'; '.join(problems)}")


def version_key(version: str) -> list[tuple[int, int, str]]:
    """Sort key of versions, with numeric parts compared as numbers."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"[.+-]", version)]
