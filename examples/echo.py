"""The smallest agent.

interlingua run examples/echo.py "hello there"
"""

import interlingua as il


@il.agent
async def echo(text: str):
    """Repeats what it hears, word by word."""
    for word in text.split():
        yield word + " "


# mypy: allow-untyped-defs, allow-incomplete-defs
