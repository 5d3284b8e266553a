"""Classifies IP addresses, by tables made from the IANA registries of special addresses.

The standard library's `is_private` and `is_global` changed their minds between Python versions, and know nothing of
cloud metadata services, so the networks stand here.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal

Address = IPv4Address | IPv6Address
Kind = Literal[
    "public", "loopback", "private", "shared", "link-local", "metadata", "multicast", "unspecified", "reserved"
]

# The first match counts.
_V4_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("0.0.0.0/8", "unspecified"),  # on Linux, 0.0.0.0 connects to this machine
    ("127.0.0.0/8", "loopback"),
    ("10.0.0.0/8", "private"),
    ("172.16.0.0/12", "private"),
    ("192.168.0.0/16", "private"),
    ("100.100.100.200/32", "metadata"),  # Alibaba Cloud
    ("100.64.0.0/10", "shared"),  # carrier-grade NAT, overlay networks
    ("169.254.0.0/16", "link-local"),  # with the metadata services of most clouds
    ("168.63.129.16/32", "metadata"),  # Azure, at a public address
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("198.18.0.0/15", "reserved"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
_V6_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fd00:ec2::/32", "metadata"),  # AWS
    ("fd20:ce::/32", "metadata"),  # Google Cloud
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
    ("2001::/23", "reserved"),  # protocol assignments, with Teredo (2001::/32), which embeds IPv4 addresses
    ("2001:db8::/32", "reserved"),
    ("3fff::/20", "reserved"),
)
_V4 = [(IPv4Network(network), kind) for network, kind in _V4_TEXTS]
_V6 = [(IPv6Network(network), kind) for network, kind in _V6_TEXTS]
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_GLOBAL = IPv6Network("2000::/3")


def plain(address: Address | str) -> Address:
    """The address without disguise: an IPv4-mapped IPv6 address is the IPv4 address to the operating system."""
    parsed = ip_address(address) if isinstance(address, str) else address
    return parsed.ipv4_mapped or parsed if isinstance(parsed, IPv6Address) else parsed


def kind(address: Address | str) -> Kind:
    """Returns the kind of an address. An address that embeds an IPv4 address that is not public is reserved."""
    address_ = plain(address)
    if isinstance(address_, IPv4Address):
        return next((kind for network, kind in _V4 if address_ in network), "public")
    for network, kind_ in _V6:
        if address_ in network:
            return kind_
    embedded = _embedded(address_)
    if embedded is not None:
        return "public" if kind(embedded) == "public" else "reserved"
    return "public" if address_ in _GLOBAL else "reserved"


def is_loopback(host: str) -> bool:
    """Returns whether a host, as people write it for binding, is this machine only. Of all names, only localhost is."""
    text = host.strip().removeprefix("[").removesuffix("]")
    if text.lower().removesuffix(".") == "localhost":
        return True
    try:
        return kind(text) == "loopback"
    except ValueError:
        return False


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address that a gateway would translate this address to."""
    value = int(address)
    if address in _NAT64:
        return IPv4Address(value & 0xFFFFFFFF)
    if address in _6TO4:
        return IPv4Address(value >> 80 & 0xFFFFFFFF)
    if value >> 32 & 0xFCFFFFFF == 0x5EFE:  # ISATAP, under any prefix
        return IPv4Address(value & 0xFFFFFFFF)
    return None
