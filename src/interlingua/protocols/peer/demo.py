"""The part of the Agent Communication Protocol in the guided tour."""

from __future__ import annotations

from ..tour import Demo, Tour


async def _hello(tour: Tour) -> None:
    message = {"role": "user", "text": "hello peer", "skill_id": "echo", "sync": True}
    answer = await tour.ask("POST", "/message:send", message)
    tour.show_json(answer["reply"]["parts"])


demo = Demo(
    title="Agent Communication", about="Peers that send messages and delegate tasks, over HTTP or acp:// links.",
    hello=_hello,
)  # fmt: skip
