"""Its part of the guided tour."""

from __future__ import annotations

from interlingua.protocols.tour import Demo, Tour


async def _hello(tour: Tour) -> None:
    listing = await tour.ask("GET", "/agents")
    tour.show_json(listing["agents"][0])


demo = Demo(title="Toy", about="Lines of JSON.", hello=_hello)
