"""The agents that show what the common ones do not, for one server."""

from __future__ import annotations

from tests.conform.agents import adder, broken, careful, echo, slow
from tests.conform.cap.crews import crew, late, shaky
from tests.conform.connect.agents import asker, chat, mute, plain, sleeper, unwilling
from tests.conform.mcp.agents import gpa, story, styled

__all__ = [
    "adder", "asker", "broken", "careful", "chat", "echo", "gpa", "late_team", "lead_team", "mute", "plain",
    "shaky_team", "sleeper", "slow", "story", "styled", "unwilling",
]  # fmt: skip

lead_team, shaky_team, late_team = crew(), shaky(), late()
