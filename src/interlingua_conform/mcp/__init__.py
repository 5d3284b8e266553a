"""Checks servers of agents over MCP, over the pipes of a command, Streamable HTTP, and HTTP+SSE.

Every server must do what the document asks; of MCP itself, a server must do what it declares. What the catalogue calls
"ours" is a promise of Interlingua: only servers that declare its extension must keep it, unless MCP asks for it too.
"""

from . import deltas
from .checks import cancelling, listing, odd_input, opening, progress, questions, revisions, running, templates, tools
from .driver import suite

__all__ = [
    "cancelling", "deltas", "listing", "odd_input", "opening", "progress", "questions", "revisions", "running", "suite",
    "templates", "tools",
]  # fmt: skip
