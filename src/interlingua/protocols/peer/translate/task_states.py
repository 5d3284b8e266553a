"""The life of a task, as one table: state → the states that may follow.

Every change of a task's state goes through `move`, for the owner, a peer or an agent. A change that is not in the table
cannot happen. The meaning of a state for a run, and the readers of a change, are not decided here.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from ....model.errors import InvalidRequest

State = Literal["submitted", "working", "input_required", "cancelling", "completed", "failed", "canceled"]

STATES: frozenset[str] = frozenset(get_args(State))
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "canceled"})

# A task is canceled by way of cancelling alone, and fails by way of working: observers are promised both steps.
TABLE: dict[State, tuple[State, ...]] = {
    "submitted": ("working", "cancelling"),
    "working": ("input_required", "completed", "failed", "cancelling"),
    "input_required": ("working", "cancelling"),
    "cancelling": ("canceled",),
    "completed": (),
    "failed": (),
    "canceled": (),
}

_BY_THE_WAY: tuple[State, ...] = ("working", "cancelling")  # steps that may be filled in where a peer left them out


class IllegalState(InvalidRequest):
    """A state that does not exist, or that a task cannot take now."""


def check_state(value: object, path: str = "status") -> State:
    """Returns a state by its name. Raises IllegalState for an unknown one."""
    if not isinstance(value, str) or value not in STATES:
        raise IllegalState(f"{path} is one of {', '.join(TABLE)}, got {_short(value)}", path=f"/{path}")
    return cast(State, value)


def may(old: str, new: str) -> bool:
    """Tells if a task may go from one state to the other. Staying in a state is no move."""
    return old in TABLE and new in TABLE[old]


def move(old: str, new: str) -> None:
    """Raises IllegalState unless a task may go from one state to the other."""
    if may(old, new):
        return
    before, after = check_state(old), check_state(new)
    if before in TERMINAL:
        raise IllegalState(f"the task is {before}, and stays so: it cannot become {after}", path="/status")
    if before == after:
        raise IllegalState(f"the task is {before} already", path="/status")
    allowed = " or ".join(TABLE[before])
    raise IllegalState(f"a {before} task cannot become {after}, only {allowed}", path="/status")


def route(old: str, new: str) -> list[State]:
    """Returns the states through which a task gets from `old` to `new`, `new` included; empty where no path leads
    there.

    Peers leave steps out: the reference (2.19) reports completed for a task that it never reported working. The skipped
    steps are taken nevertheless, so that our observers see every task take the same path.
    """
    if may(old, new):
        return [cast(State, new)]
    for step in _BY_THE_WAY:
        if may(old, step) and may(step, new):
            return [step, cast(State, new)]
    return []


def takes_artifact(state: str) -> bool:
    """Tells if an artifact may be added now: after working began, and before the task ended."""
    return state == "working"


def diagram() -> str:
    """Returns the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> submitted"]
    lines.extend(f"    {old} --> {new}" for old, following in TABLE.items() for new in following)
    lines.extend(f"    {state} --> [*]" for state in TABLE if state in TERMINAL)
    return "\n".join(lines)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
