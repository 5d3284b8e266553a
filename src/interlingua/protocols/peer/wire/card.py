"""The AgentCard of a node: built from facts, and read from others.

A flag is true only where this node has the feature now, and every flag appears twice: flat, as all versions have it,
and in `groups`. Signing is not done here (see `signatures`), and neither is serving.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ...._version import __version__
from ....model.errors import InvalidRequest
from ..translate.parts import KINDS
from ..translate.skills import Skill
from . import extensions as extensions_
from .frames import now_z, seconds_of

ACP_VERSION = "1.0"
MAX_MSG_BYTES = 1_048_576
TRANSPORT_MODES = ("p2p", "relay")

ENDPOINTS: dict[str, str] = {
    "send": "/message:send",
    "recv": "/message:recv",
    "stream": "/stream",
    "tasks": "/tasks",
    "agent_card": "/.well-known/acp.json",
    "jwks": "/.well-known/jwks.json",
    "skills_query": "/skills/query",
    "peers": "/peers",
    "peer_send": "/peer/{id}/send",
    "peers_connect": "/peers/connect",
    "extensions": "/extensions",
    "discover": "/discover",
    "status": "/status",
}
OWNERS = frozenset({"peers", "peer_send", "peers_connect", "discover"})  # the features of the control API alone

# Features that a node may have or not, and that nothing else tells.
OPTIONAL = frozenset(
    {"broadcast", "history", "long_poll", "read_receipt", "typing_indicator", "webhooks", "skills_openapi_spec"}
)


class CardFacts(msgspec.Struct, kw_only=True):
    """The facts of a node for its card."""

    name: str
    description: str = ""
    skills: list[Skill] = []
    transports: list[str] = msgspec.field(
        default_factory=lambda: ["http"]
    )  # active bindings: http, ws, h2c, tcp, stdio
    transport_modes: list[str] = msgspec.field(default_factory=lambda: list(TRANSPORT_MODES))
    relay: bool = False  # a relay is in use, or falls in where no direct way leads
    lan_discovery: bool = False
    hmac: bool = False
    identity: dict[str, Any] | None = None  # the block of `Trust.card_block`
    extensions: list[extensions_.Extension] = []  # declared ones; built-in ones are added
    availability: dict[str, Any] | None = None
    limitations: list[dict[str, Any]] = []
    interfaces: list[str] = []  # empty: the groups of the active features
    auth_schemes: list[str] = msgspec.field(default_factory=lambda: ["none"])
    endpoints: dict[str, str] = {}  # beside, or in place of, ENDPOINTS
    door: bool = False  # the card is for callers of the door, who cannot use the owner's operations
    link: str | None = None  # with its token: only for peers that may connect
    max_msg_bytes: int = MAX_MSG_BYTES
    features: frozenset[str] = frozenset()  # out of OPTIONAL
    version: str = __version__
    timestamp: str | None = None  # None: now


def build(facts: CardFacts) -> dict[str, Any]:
    """Returns the flat card, unsigned."""
    if unknown := facts.features - OPTIONAL:
        raise ValueError(f"{min(unknown)!r} is no optional feature of a card")
    capabilities = _flags(facts)
    groups = _groups(facts)
    card: dict[str, Any] = {
        "protocol": "acp",
        "name": facts.name,
        "description": facts.description or f"{facts.name}, an agent reached by acp:// links",
        "acp_version": ACP_VERSION,
        "version": facts.version,
        "timestamp": facts.timestamp or now_z(),
        "skills": [skill.view() for skill in facts.skills],
        "transport_modes": list(facts.transport_modes),
        "extensions": extensions_of(facts),
        "limitations": list(facts.limitations),
        "supported_interfaces": facts.interfaces or [name for name, flags in groups.items() if any(flags.values())],
        "capabilities": {**capabilities, "groups": groups},
        "identity": dict(facts.identity) if facts.identity is not None else None,
        "trust": {
            "scheme": "hmac-sha256" if facts.hmac else "none",
            "enabled": facts.hmac,
            "signals": _signals(facts),
        },
        "auth": {"schemes": list(facts.auth_schemes) or ["none"]},
        "endpoints": {
            name: path for name, path in {**ENDPOINTS, **facts.endpoints}.items() if not (facts.door and name in OWNERS)
        },
    }
    if facts.availability:
        card["availability"] = dict(facts.availability)
    if facts.link is not None:
        card["link"] = facts.link
    return card


def extensions_of(facts: CardFacts) -> list[extensions_.Extension]:
    """Returns the declared extensions, then the active ones. The first declaration of a URI counts."""
    active = extensions_.built_in(hmac=facts.hmac, mdns=facts.lan_discovery, h2c="h2c" in facts.transports)
    return extensions_.dedupe([*facts.extensions, *active])


def _flags(facts: CardFacts) -> dict[str, Any]:
    has_identity = facts.identity is not None
    return {
        "streaming": True,
        "push_notifications": True,
        "input_required": True,
        "part_types": list(KINDS),
        "max_msg_bytes": facts.max_msg_bytes,
        "query_skill": True,
        "server_seq": True,
        "multi_session": not facts.door,  # the peers of a node are its owner's, and GET /peers is not at the door
        "error_codes": True,
        "hmac_signing": facts.hmac,
        "lan_discovery": facts.lan_discovery,
        "context_id": True,
        "identity": "ed25519" if has_identity else "none",
        "supported_transports": list(facts.transports),
        "well_known_rfc8615": True,
        "tasks_pagination": True,
        "message_priority": True,
        "delivery_ack": True,
        # the reference's further members
        "peer_ping": True,
        "read_receipt": "read_receipt" in facts.features,
        "typing_indicator": "typing_indicator" in facts.features,
        "did_identity": has_identity,
        "card_sig": has_identity,
        "auto_card_verify": True,
        "availability": bool(facts.availability),
        "extensions": bool(extensions_of(facts)),
        "http2": "h2c" in facts.transports,
        "offline_queue": True,
        "lan_port_scan": False,  # a GET that scans a network is no feature
        "webhooks": "webhooks" in facts.features,
        # ours, between nodes of this implementation
        "task_delegation": True,
        "task_chunks": True,
        "resume": True,
    }


def _groups(facts: CardFacts) -> dict[str, dict[str, bool]]:
    has_identity = facts.identity is not None
    direct = bool({"ws", "tcp"} & set(facts.transports))
    return {
        "messaging": {
            "streaming": True,
            "push": True,
            "input_required": True,
            "message_priority": True,
            "priority": True,
            "delivery_ack": True,
            "long_poll": "long_poll" in facts.features,
            "history": "history" in facts.features,
            "broadcast": "broadcast" in facts.features,
        },
        "tasks": {
            "cancelling": True,
            "pagination": True,
            "context_id": True,
            "filtering": True,
            "state_machine": True,
        },
        "identity": {
            "ed25519": has_identity,
            "hmac": facts.hmac,
            "jwks": has_identity,
            "did": has_identity,
            "card_signature": has_identity,
        },
        "transport": {
            "sse": True,
            "http2": "h2c" in facts.transports,
            "p2p_direct": direct and "p2p" in facts.transport_modes,
            "dcutr": False,  # hole punching: a UDP hole is of no use to a WebSocket, see the docs
            "relay_fallback": facts.relay and "relay" in facts.transport_modes,
        },
        "discovery": {
            "lan_mdns": facts.lan_discovery,
            "skills_list": True,
            "query_skill": True,
            "skills": True,
            "skills_openapi_spec": "skills_openapi_spec" in facts.features,
            "limitations": True,
            "availability_schedule": True,
        },
    }


def _signals(facts: CardFacts) -> list[dict[str, Any]]:
    """Returns the reasons to trust this card and its messages: only active ones."""
    told: list[dict[str, Any]] = []
    if facts.hmac:
        told.append({"type": "hmac", "scheme": "hmac-sha256", "enabled": True})
    if facts.identity is not None:
        did = facts.identity.get("did")
        told.append({"type": "identity", "scheme": "ed25519", "enabled": True, "did": did})
        told.append({"type": "card_signature", "scheme": "ed25519", "enabled": True})
        told.append({"type": "jwks", "url": "/.well-known/jwks.json", "enabled": True})
    return told


def served(card: dict[str, Any], peer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a card as GET serves it: flat, and wrapped as the reference has it. A signature covers `self`."""
    return {**card, "self": card, "peer": peer}


# -- reading remote cards -------------------------------------------------------------------------------------

# Where each flat flag stands in the groups, under the seed's name or the reference's.
_IN_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "streaming": ("messaging", ("streaming",)),
    "push_notifications": ("messaging", ("push",)),
    "input_required": ("messaging", ("input_required",)),
    "message_priority": ("messaging", ("message_priority", "priority")),
    "delivery_ack": ("messaging", ("delivery_ack",)),
    "tasks_pagination": ("tasks", ("pagination",)),
    "context_id": ("tasks", ("context_id",)),
    "hmac_signing": ("identity", ("hmac",)),
    "http2": ("transport", ("http2",)),
    "lan_discovery": ("discovery", ("lan_mdns",)),
    "query_skill": ("discovery", ("query_skill",)),
}


def unwrap(value: Any) -> dict[str, Any] | None:
    """Returns the card in an answer: flat as the seed has it, or under `self` as the reference has it."""
    if not isinstance(value, dict):
        return None
    inner = value.get("self")
    return inner if isinstance(inner, dict) else value


def largest(card: dict[str, Any] | None) -> int:
    """Returns the bytes of the longest frame that a peer takes. A longer one ends the connection, and would end the
    next one too."""
    capabilities = (card or {}).get("capabilities")
    told = capabilities.get("max_msg_bytes") if isinstance(capabilities, dict) else None
    return told if type(told) is int and told > 0 else MAX_MSG_BYTES


def has(card: dict[str, Any] | None, flag: str) -> bool:
    """Tells if a peer's card declares a capability. Groups win over flat flags; absent is the same as false."""
    capabilities = (card or {}).get("capabilities")
    if not isinstance(capabilities, dict):
        return False
    groups = capabilities.get("groups")
    group, names = _IN_GROUPS.get(flag, ("", ()))
    flags = groups.get(group) if isinstance(groups, dict) else None
    if isinstance(flags, dict):
        for name in names:
            if isinstance(flags.get(name), bool):
                return bool(flags[name])
    return capabilities.get(flag) is True


def transport_modes(card: dict[str, Any] | None) -> list[str]:
    """Returns the transport modes that a peer advises. Absent means both; unknown values are ignored."""
    return _known_texts((card or {}).get("transport_modes"), TRANSPORT_MODES) or list(TRANSPORT_MODES)


def supported_transports(card: dict[str, Any] | None) -> list[str]:
    """Returns the bindings that a peer's card names; http where it names none."""
    capabilities = (card or {}).get("capabilities")
    named = capabilities.get("supported_transports") if isinstance(capabilities, dict) else None
    return [value for value in named if isinstance(value, str)] if isinstance(named, list) else ["http"]


def _known_texts(value: Any, known: Iterable[str]) -> list[str]:
    given = value if isinstance(value, list) else []
    return [name for name in known if name in given]


def parse_modes(text: str) -> list[str]:
    """Parses a comma-separated subset of p2p and relay, as --transport-modes takes it."""
    given = [part.strip() for part in text.split(",") if part.strip()]
    for mode in given:
        if mode not in TRANSPORT_MODES:
            raise InvalidRequest(f"a transport mode is p2p or relay, got {mode[:80]!r}", path="/transport_modes")
    if not given:
        raise InvalidRequest("there is at least one transport mode: p2p, relay or both", path="/transport_modes")
    return _known_texts(given, TRANSPORT_MODES)


# -- limitations ----------------------------------------------------------------------------------------------

LIMITATION_KINDS = ("capability", "modality", "scale", "domain", "access", "other")


def limitation(value: Any, path: str = "/limitations") -> dict[str, Any]:
    """Returns one limitation as an object. A text is a permanent lack of a capability."""
    if isinstance(value, str) and value.strip():
        return {"kind": "capability", "code": value, "message": value, "permanent": True}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} is a text, or an object with kind, code, message and permanent", path=path)
    kind, permanent = value.get("kind", "other"), value.get("permanent", True)
    if kind not in LIMITATION_KINDS:
        raise InvalidRequest(
            f"{path}/kind is one of {', '.join(LIMITATION_KINDS)}, got {kind!r:.80}", path=f"{path}/kind"
        )
    if not isinstance(permanent, bool):
        raise InvalidRequest(f"{path}/permanent is true or false, got {permanent!r:.80}", path=f"{path}/permanent")
    code = value.get("code") or value.get("message")
    message = value.get("message") or value.get("code")
    if not isinstance(code, str) or not isinstance(message, str):
        raise InvalidRequest(f"{path}/code is a text that says what cannot be done", path=f"{path}/code")
    return {"kind": kind, "code": code, "message": message, "permanent": permanent}


def limitations(value: Any, path: str = "/limitations") -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is a list", path=path)
    return merge_limitations([], [limitation(entry, f"{path}/{index}") for index, entry in enumerate(value)])


def parse_limitations(text: str) -> list[dict[str, Any]]:
    """Parses texts separated by commas, or a JSON array, as the flags take them."""
    if not text.strip().startswith("["):
        return limitations([part.strip() for part in text.split(",") if part.strip()])
    try:
        return limitations(json.loads(text))
    except ValueError as error:
        raise InvalidRequest(f"the limitations look like a JSON array, but cannot be read: {error}") from None


def merge_limitations(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns both lists, with the newer entry where two have the same code."""
    return list({entry["code"]: entry for entry in [*old, *new]}.values())


def filter_limitations(given: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    """Returns the limitations that are permanent, transient, or of one kind."""
    if wanted in ("permanent", "transient"):
        return [entry for entry in given if entry["permanent"] is (wanted == "permanent")]
    if wanted in LIMITATION_KINDS:
        return [entry for entry in given if entry["kind"] == wanted]
    known = ", ".join(("permanent", "transient", *LIMITATION_KINDS))
    raise InvalidRequest(f"filter_limitations is one of {known}, got {wanted[:80]!r}", path="/filter_limitations")


def filtered(card: dict[str, Any], wanted: str) -> dict[str, Any]:
    """Returns the card with only those limitations, also on its skills. Its signature, if any, no longer fits and is
    left out."""
    skills = [{**skill, "limitations": filter_limitations(skill["limitations"], wanted)} for skill in card["skills"]]
    told = {**card, "limitations": filter_limitations(card["limitations"], wanted), "skills": skills}
    if isinstance(told["identity"], dict):
        told["identity"] = {name: value for name, value in told["identity"].items() if name != "card_sig"}
    return told


# -- availability ---------------------------------------------------------------------------------------------

AVAILABILITY_MODES = ("persistent", "heartbeat", "cron", "manual")
_SECONDS = ("interval_seconds", "task_latency_max_seconds")
_TIMES = ("next_active_at", "last_active_at")
_PATTERNS = {
    "schedule": (re.compile(r"\S+( +\S+){4,5}|@[a-z]+"), "a cron expression such as '0 9 * * 1'"),
    "timezone": (re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*"), "a time zone such as Europe/Paris"),
}


def availability(change: Any, old: dict[str, Any] | None = None, path: str = "/availability") -> dict[str, Any]:
    """Returns the availability of a node after a change. Null removes a member; an unknown member is refused."""
    if not isinstance(change, dict):
        raise InvalidRequest(f"{path} is an object", path=path)
    for name, value in change.items():
        _check_availability(name, value, f"{path}/{name}")
    return {name: value for name, value in {**(old or {}), **change}.items() if value is not None}


def _check_availability(name: str, value: Any, path: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "mode":
            fits, wanted = value in AVAILABILITY_MODES, f"one of {', '.join(AVAILABILITY_MODES)}"
        case _ if name in _SECONDS:
            fits, wanted = number and value >= 0, "a number of seconds"
        case _ if name in _TIMES:
            fits, wanted = isinstance(value, str) and seconds_of(value) is not None, "a time of ISO 8601"
        case _ if name in _PATTERNS:
            pattern, wanted = _PATTERNS[name]
            fits = isinstance(value, str) and pattern.fullmatch(value) is not None
        case _:
            known = ", ".join(("mode", *_SECONDS, *_TIMES, *_PATTERNS))
            raise InvalidRequest(f"{path[:200]} is not known (only {known})", path=path[:200])
    if value is not None and not fits:
        raise InvalidRequest(f"{path} is {wanted}, got {value!r:.80}", path=path)
