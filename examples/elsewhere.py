"""Five small agents that the demo serves in another process, and reaches by five protocols.

interlingua serve examples/elsewhere.py
"""

from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def shouter(text: str) -> AsyncIterator[str]:
    """Says it louder, word by word."""
    for word in text.split():
        yield word.upper() + " "


@il.agent
async def turner(text: str) -> str:
    """Says it backwards."""
    return text[::-1]


@il.agent
async def initials(text: str) -> str:
    """Keeps the first letters."""
    return "".join(word[0] for word in text.split())


@il.agent
async def teller(text: str) -> str:
    """Counts the words."""
    return f"{len(text.split())} words"


@il.agent
async def sorter(text: str) -> str:
    """Sorts the words."""
    return " ".join(sorted(text.split()))
