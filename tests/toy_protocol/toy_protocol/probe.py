"""Recognises the protocol at an address."""

from __future__ import annotations

from interlingua.protocols.probing import Listed, Probes, Spoken, list_of, object_of, text_of
from interlingua.transports.raw_client import Http


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/agents")
    listing = object_of(answer.json()) if answer.status == 200 else {}
    if "toy" not in listing:
        return None
    agents = [Listed(text_of(object_of(agent).get("name"))) for agent in list_of(listing.get("agents"))]
    return Spoken(protocol="toy", target=f"toy+{address}", protocol_versions=[str(listing["toy"])], agents=agents)


probes = Probes(http=_http)
