"""The part of the demo in which one agent is called by every protocol, and agents of all protocols by one."""

from __future__ import annotations

import json
from pathlib import Path

from .door_tour import Doors
from .tour import say, show


async def every_door(doors: Doors, file: Path) -> None:
    """The same function, by every protocol."""
    say(
        f"1  one agent, {len(doors.all)} protocols",
        f"An agent is a Python function ({file.name}). Nothing in it knows of any protocol:",
    )
    for line in _function_in(file):
        show(f"    {line}")
    for door in doors.all:
        say(door.demo.title, door.demo.about)
        await door.demo.hello(door)


def _function_in(file: Path) -> list[str]:
    """Returns the function in a file, without what stands around it."""
    lines = file.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("@"))
    end = next((at for at in range(start, len(lines)) if not lines[at].strip()), len(lines))
    return lines[start:end]


async def every_mount(doors: Doors, mounted: list[tuple[str, str]]) -> None:
    """Agents of another process, each by another protocol, behind one door."""
    door = doors.first(lambda demo: demo.call)
    call = door.demo.call
    assert call is not None
    say(
        f"2  agents of {len(mounted)} protocols, one door",
        "A second process serves other agents. Each is mounted by another protocol, and is now like one of ours:",
    )
    for agent, target in mounted:
        show(f"    {agent:<10} {target}")
    say("", f"Here all of them are called by {door.demo.title}, as the first is:")
    for agent, _ in mounted:
        output = await call(door, agent, {"text": "write it once"}, agent != mounted[0][0])
        show(f"{agent}: {json.dumps(output)}")
