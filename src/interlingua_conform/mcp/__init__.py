"""Checks of servers of agents over MCP, over the pipes of a command, Streamable HTTP, and HTTP+SSE.

What the document asks for is asked of every server; of MCP itself, what a server says that it can. What the catalogue
calls ours is Interlingua's own promise: it is asked of those who declare its extension, unless MCP asks for it too.
"""

from . import deltas
from .checks import cancelling, listing, odd_input, opening, progress, questions, revisions, running, templates, tools
from .driver import suite

__all__ = [
    "cancelling", "deltas", "listing", "odd_input", "opening", "progress", "questions", "revisions", "running", "suite",
    "templates", "tools",
]  # fmt: skip
