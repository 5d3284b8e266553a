"""Write an agent once. Every agent protocol speaks to it.

    import interlingua as il

    @il.agent
    async def echo(text: str):
        for word in text.split():
            yield word + " "

The names below are the public API; they are imported when first used, so that a command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .client.client import Client, Unsupported
    from .client.handles import OpenQuestion, RunFailed, RunHandle, ThreadHandle, Waiting
    from .client.sync import SyncClient
    from .engine.agents.agent import Agent
    from .engine.agents.question_types import AskText, Choice, Choose, Confirm, Question, Text, Verdict
    from .engine.definition import agent
    from .engine.engine import Engine
    from .engine.handler.context import Context, SyncContext
    from .engine.settings import Settings
    from .model.card import AgentCard, ErrorDefinition, Skill
    from .model.content import Artifact, DataPart, FilePart, Message, TextPart, ToolResultPart
    from .model.errors import (
        AgentError,
        ChildFailed,
        DefinitionError,
        Denied,
        InterlinguaError,
        QuestionExpired,
        Rejected,
        RunNotFound,
        StepFailed,
        ToolFailed,
    )
    from .model.events import Diff, Event, Location, PlanEntry
    from .model.run import Caller, Option, Run, RunRequest, Thread
    from .model.status import Status
    from .model.team.authority import Limits, Scope
    from .model.team.oversight import ReviewVerdict
    from .server.loading.team import load_team, team

__all__ = [
    "Agent", "AgentCard", "AgentError", "Artifact", "AskText", "Caller", "ChildFailed", "Choice", "Choose", "Client",
    "Confirm", "Context", "DataPart", "DefinitionError", "Denied", "Diff", "Engine", "ErrorDefinition", "Event",
    "FilePart", "InterlinguaError", "Limits", "Location", "Message", "OpenQuestion", "Option", "PlanEntry",
    "Question", "QuestionExpired", "Rejected", "ReviewVerdict", "Run", "RunFailed", "RunHandle", "RunNotFound",
    "RunRequest", "Scope", "Settings", "Skill", "Status", "StepFailed", "SyncClient", "SyncContext", "Text",
    "TextPart", "Thread", "ThreadHandle", "ToolFailed", "ToolResultPart", "Unsupported", "Verdict", "Waiting",
    "__version__", "agent", "load_team", "team",
]  # fmt: skip

_HOMES = {
    "client.client": ("Client", "Unsupported"),
    "client.sync": ("SyncClient",),
    "client.handles": ("OpenQuestion", "RunFailed", "RunHandle", "ThreadHandle", "Waiting"),
    "server.loading.team": ("load_team", "team"),
    "engine.agents.agent": ("Agent",),
    "engine.handler.context": ("Context", "SyncContext"),
    "engine.definition": ("agent",),
    "engine.engine": ("Engine",),
    "engine.agents.question_types": ("AskText", "Choice", "Choose", "Confirm", "Question", "Text", "Verdict"),
    "engine.settings": ("Settings",),
    "model.card": ("AgentCard", "ErrorDefinition", "Skill"),
    "model.content": ("Artifact", "DataPart", "FilePart", "Message", "TextPart", "ToolResultPart"),
    "model.team.authority": ("Limits", "Scope"),
    "model.errors": (
        "AgentError",
        "ChildFailed",
        "DefinitionError",
        "Denied",
        "InterlinguaError",
        "QuestionExpired",
        "Rejected",
        "RunNotFound",
        "StepFailed",
        "ToolFailed",
    ),
    "model.events": ("Diff", "Event", "Location", "PlanEntry"),
    "model.team.oversight": ("ReviewVerdict",),
    "model.run": ("Caller", "Option", "Run", "RunRequest", "Thread"),
    "model.status": ("Status",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
