"""Reads the flags of a node, which are the settings of its door: from a command line, or from a file of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ... import extras
from ...doors.settings import Problem
from ...model.card import AgentCard
from ...model.errors import InvalidRequest
from ..base import PortClaim
from .config import DoorSettings, NodeSettings
from .translate import skills
from .wire import card as cards
from .wire import extensions, links

IDENTITY = "~/.acp/identity.json"

# How flags are called elsewhere: by the reference, or in older documents.
SPELLINGS = {"max_msg_size": "max_msg_bytes", "identity_file": "identity"}
_LISTS = ("join", "extension")
_AVAILABILITY = {
    "availability_mode": "mode", "heartbeat_interval": "interval_seconds", "next_active_at": "next_active_at",
    "availability_cron": "schedule",
}  # fmt: skip
_IGNORED = ("inbox", "local_only", "test_mode", "config", "version")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FLAG_FIRST = re.compile(r"^(--[a-z-]+|/availability/\w+|/skills|/limitations):?\s*")
_INDEX_FIRST = re.compile(r"^/(\d+)")
_FLAG = re.compile(r"(?<!\S)--([a-z][a-z-]*)")
_LIMITS = (
    "max_peers", "max_queued", "max_unread", "max_streams", "keep_events", "keep_messages", "in_flight", "card_wait",
    "cancel_grace", "reconnect_first", "reconnect_last",
)  # fmt: skip
_NO_FLAGS = ("enabled", "own_port", "own_host", "ports", "config")


def check(settings: DoorSettings, agents: Iterable[AgentCard] | None = None) -> Iterator[Problem]:
    """Yields the mistakes of a door's settings, by their names. Without `agents`, these are not known yet."""
    for name, error in mistakes(settings):
        yield Problem(name, _without_flags(error.message))
    wanted = settings.default_agent
    if agents is not None and wanted is not None:
        known = list(agents)
        if not any(skills.answers(card, wanted) for card in known):
            names = ", ".join(card.name for card in known) or "none"
            yield Problem("default_agent", f"there is no agent {wanted!r}; there are {names}")


def _without_flags(text: str) -> str:
    """Names settings as a config file does: a message names flags, or members of a card."""
    text = _INDEX_FIRST.sub(r"[\1]", _FLAG_FIRST.sub("", text))
    return _FLAG.sub(lambda found: found[1].replace("-", "_"), text)


def ports(settings: DoorSettings) -> Iterator[PortClaim]:
    """Yields the ports that the node opens."""
    if settings.ports:
        yield PortClaim("port", settings.host, settings.port)
        yield PortClaim("http_port", settings.http_host, settings.http_port)
        yield PortClaim("tcp_port", settings.host, settings.tcp_port)


def flag_names() -> list[str]:
    """Returns the settings that are flags of `interlingua peer`."""
    return [name for name in DoorSettings.__struct_fields__ if name not in (*_NO_FLAGS, *_LIMITS)]


def settings_of(flags: DoorSettings) -> NodeSettings:
    """Returns the settings from the flags. Raises InvalidRequest, which names the flag and its fault."""
    for _, error in mistakes(flags):
        raise error
    relay, modes = _relay(flags)
    return NodeSettings(
        name=flags.name, host=flags.host, port=flags.port, http_host=flags.http_host, http_port=flags.http_port,
        http_token=flags.http_token or None, tcp_port=flags.tcp_port, public_host=flags.public_host,
        public_url=flags.public_url, skills=_skills(flags.skills), secret=flags.secret or None,
        hmac_window=flags.hmac_window, strict=flags.strict, identity=_identity(flags.identity), relay=relay,
        transport_modes=tuple(modes), extensions=tuple(_extensions(flags)), limitations=tuple(_limitations(flags)),
        availability=_availability(flags), interfaces=tuple(_words(flags.supported_interfaces)),
        advertise_mdns=flags.advertise_mdns, advertise_dnssd=flags.advertise_dnssd, http2=flags.http2,
        tls_cert=flags.tls_cert, tls_key=flags.tls_key, tls_ca=flags.tls_ca, max_msg_bytes=flags.max_msg_bytes,
        default_agent=flags.default_agent, join=tuple(flags.join),
        **{name: getattr(flags, name) for name in _LIMITS},
    )  # fmt: skip


def mistakes(flags: DoorSettings) -> Iterator[tuple[str, InvalidRequest]]:
    """Yields all invalid flags, each with the name of the flag, before anything starts."""
    told = {
        "name": _check_name, "tls_cert": _check_file, "tls_key": _check_key, "tls_ca": _check_file,
        "relay": lambda flags, _: _relay(msgspec.structs.replace(flags, transport_modes=None)),
        "transport_modes": lambda flags, name: cards.parse_modes(getattr(flags, name)),
        "skills": lambda flags, name: skills.declared(getattr(flags, name)),
        "join": lambda flags, name: [links.parse(link) for link in getattr(flags, name)],
        "extension": lambda flags, _: _extensions(msgspec.structs.replace(flags, extensions=None)),
        "extensions": lambda flags, name: extensions.parse_many(getattr(flags, name)),
        "limitations": lambda flags, _: _limitations(msgspec.structs.replace(flags, limitations_json=None)),
        "limitations_json": lambda flags, _: _limitations(msgspec.structs.replace(flags, limitations=None)),
        **dict.fromkeys(_AVAILABILITY, _check_availability),
    }  # fmt: skip
    for name, look in told.items():
        if getattr(flags, name) or name in ("name", "relay"):  # those mean something where they are empty
            try:
                look(flags, name)
            except InvalidRequest as error:
                yield name, error


def _check_name(flags: DoorSettings, _: str) -> None:
    if not flags.name.strip() or len(flags.name) > 200 or _CONTROL.search(flags.name):
        raise InvalidRequest("--name is a text of at most 200 characters, on one line")


def _check_file(flags: DoorSettings, name: str) -> None:
    if not getattr(flags, name).is_file():
        raise InvalidRequest(f"--{name.replace('_', '-')}: there is no file {getattr(flags, name)}")


def _check_key(flags: DoorSettings, name: str) -> None:
    if flags.tls_cert is None:
        raise InvalidRequest("--tls-key belongs to a --tls-cert")
    _check_file(flags, name)


def _check_availability(flags: DoorSettings, name: str) -> None:
    cards.availability({_AVAILABILITY[name]: getattr(flags, name)})


def _words(text: str | None) -> list[str]:
    return [word for part in (text or "").split(",") if (word := part.strip())]


def _skills(text: str | None) -> tuple[Any, ...]:
    if text is None or not text.strip().startswith("["):
        return tuple(_words(text))
    return tuple(json.loads(text))


def _identity(path: Path | str | None) -> Path | None:
    """Returns the file of the key. An empty path stands for the flag without a value."""
    if path is None:
        return None
    return (Path(IDENTITY) if Path(path) == Path() else Path(path)).expanduser()


def _relay(flags: DoorSettings) -> tuple[str | None, list[str]]:
    """Returns the relay, and the open transports. The reference's --relay has no value, and means the relay alone."""
    given = flags.relay or flags.relay_url or None
    alone = flags.relay == ""
    if given is None:
        if alone:
            raise InvalidRequest("--relay needs to know which one: --relay acp+wss://HOST; no relay is asked unnamed")
        return None, cards.parse_modes(flags.transport_modes) if flags.transport_modes else ["p2p", "relay"]
    scheme, mark, rest = given.partition("://")
    known = {"https": "acp+wss", "wss": "acp+wss", "acp+wss": "acp+wss"}
    known |= {"http": "acp+ws", "ws": "acp+ws", "acp+ws": "acp+ws"}
    if not mark or scheme.lower() not in known:
        raise InvalidRequest(f"--relay is an address such as acp+wss://relay.example.org, got {given[:80]!r}")
    base = f"{known[scheme.lower()]}://{rest.rstrip('/').removesuffix('/acp')}"
    links.parse(f"{base}/acp/{links.new_token()}")
    if flags.transport_modes:
        return base, cards.parse_modes(flags.transport_modes)
    return base, ["relay"] if alone else ["p2p", "relay"]


def _extensions(flags: DoorSettings) -> list[dict[str, Any]]:
    found = [
        extensions.check(_json(text, "--extension")) if text.lstrip().startswith("{") else extensions.parse_one(text)
        for text in flags.extension
    ]
    return extensions.dedupe([*found, *extensions.parse_many(flags.extensions or "")])


def _limitations(flags: DoorSettings) -> list[dict[str, Any]]:
    found = cards.parse_limitations(flags.limitations) if flags.limitations else []
    if not flags.limitations_json:
        return found
    return cards.merge_limitations(found, cards.limitations(_json(flags.limitations_json, "--limitations-json")))


def _availability(flags: DoorSettings) -> dict[str, Any] | None:
    told = {member: getattr(flags, name) for name, member in _AVAILABILITY.items()}
    if told["mode"] is None:  # its fields show the mode
        told["mode"] = "cron" if flags.availability_cron else "heartbeat" if flags.heartbeat_interval else None
    return cards.availability({name: value for name, value in told.items() if value is not None}) or None


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is JSON, and cannot be read: {error}") from None


# -- the config file ------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """Returns defaults for flags, by their names, from a JSON or YAML file: in the form of a command line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--config: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    value = _parsed(path, text)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"--config: {path} holds no object with flags and their values")
    known = {*flag_names(), *SPELLINGS}
    found: dict[str, Any] = {}
    for key, given in value.items():
        name = str(key).lstrip("-").replace("-", "_")
        if name in _IGNORED or given is None:
            continue
        if name not in known:
            raise InvalidRequest(f"--config: {path} has {str(key)[:80]!r}, and there is no such flag")
        found[SPELLINGS.get(name, name)] = _as_written(name, given)
    return {name: given for name, given in found.items() if given is not None}


def _parsed(path: Path, text: str) -> Any:
    if path.suffix.lower() not in (".yaml", ".yml"):
        try:
            return json.loads(text)
        except ValueError as error:
            if path.suffix.lower() == ".json":
                raise InvalidRequest(f"--config: {path} is no JSON: {error}") from None
    extras.require(f"--config: {path} is YAML, which", "pyyaml", "yaml", "yaml")
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidRequest(f"--config: {path} is neither JSON nor YAML: {' '.join(str(error).split())}") from None


def _as_written(name: str, value: Any) -> Any:
    """Returns a value of the file in the form of a flag on a command line. An empty text counts as absent, as in the
    specification."""
    if value == "":
        return None
    if name in ("identity", "relay") and isinstance(value, bool):
        return "" if value else None
    if name in _LISTS:
        return [
            one if isinstance(one, str) else json.dumps(one) for one in (value if isinstance(value, list) else [value])
        ]
    if name in ("transport_modes", "supported_interfaces", "extensions") and isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value


def from_config(path: Path) -> DoorSettings:
    """Returns the settings from a file of flags alone."""
    try:
        return msgspec.convert(read_config(path), DoorSettings, strict=False, dec_hook=lambda type_, text: type_(text))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"--config: {path}: {error}") from None
