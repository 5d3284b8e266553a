"""Recognises the Agent Communication Protocol: nodes, by their cards, and relays."""

from __future__ import annotations

import re
from typing import Any

from ...model.errors import Unavailable
from ...mounts.settings import read_settings
from ...transports.raw_client import Http, Pipes
from ...transports.raw_client.websocket import Socket
from ..probing import Listed, Probes, Spoken, first_line, flat, list_of, object_of, text_of
from .config import MountSettings
from .mount.credentials import look
from .wire import links

_CARD = "acp.agent_card"


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/.well-known/acp.json")
    if answer.status != 200 or not isinstance(document := answer.json(), dict):
        return await _relay(http, path)
    card = object_of(document.get("self")) or document
    if "acp_version" not in card and card.get("protocol") != "acp":
        return None
    return _described(card, f"peer+{address}")


async def _relay(http: Http, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/acp/myip")
    if answer.status != 200 or not isinstance(document := answer.json(), dict) or "ip" not in document:
        return None
    return Spoken(
        protocol="relay", title="a relay of the Agent Communication Protocol", target=None,
        notes=["give it to a node: interlingua peer --relay"],
    )  # fmt: skip


async def _socket(socket: Socket, address: str) -> Spoken | None:
    """Waits for the card that a node shows to every client that connects."""
    frame = await socket.until(lambda m: m.get("type") == _CARD, "a card")
    return _described(_card_in(frame), re.sub("^ws", "acp", address))


async def _pipes(pipes: Pipes, command: str) -> Spoken | None:
    """Introduces itself: a node that is started by others begins with its card."""
    card = {"name": "interlingua", "acp_version": "1.0", "capabilities": {"client_only": True}}
    pipes.send({"type": _CARD, "message_id": "msg_inspect", "card": card})
    spoken = _described(_card_in(await pipes.until(lambda m: m.get("type") == _CARD, "a card")), None)
    spoken.notes.append("over pipes: a node is mounted by its link, not by its command")
    return spoken


async def _link(link: str) -> Spoken:
    try:
        card = await look(links.parse(link), read_settings(MountSettings, "peer"))
    except ConnectionError as error:
        raise Unavailable(str(error)) from error
    return _described(card, link)


def _card_in(frame: dict[str, Any]) -> dict[str, Any]:
    card = object_of(frame.get("card")) or frame
    return object_of(card.get("self")) or card


def _described(card: dict[str, Any], target: str | None) -> Spoken:
    """Describes a node by its card."""
    skills = list_of(card.get("skills"))
    spoken = Spoken(
        protocol="peer", target=target, name=text_of(card.get("name")), version=text_of(card.get("version")),
        protocol_versions=[text_of(card.get("acp_version"))], capabilities=flat(card.get("capabilities")),
        agents=[
            Listed(text_of(skill.get("id")) or text_of(skill.get("name")), first_line(skill.get("description")))
            if isinstance(skill, dict) else Listed(str(skill)) for skill in skills
        ],
    )  # fmt: skip
    if not skills:
        spoken.notes.append("its card names no skills: it is mounted as one agent, which takes messages")
    return spoken


probes = Probes(http=_http, socket=_socket, pipes=_pipes, link=_link)
