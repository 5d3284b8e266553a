"""What kind of place an address is, with and without disguise."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.security.addresses import is_loopback, kind, plain

v4 = st.ip_addresses(v=4)
v6 = st.ip_addresses(v=6)
NAT64 = IPv6Network("64:ff9b::/96")
SPECIAL = st.sampled_from(
    ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
).map(IPv4Address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", "public"),
        ("172.15.255.255", "public"),
        ("172.32.0.0", "public"),
        ("100.63.255.255", "public"),
        ("100.128.0.0", "public"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("192.168.255.255", "private"),
        ("100.64.0.1", "shared"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("169.254.169.254", "link-local"),
        ("198.18.0.1", "reserved"),
        ("192.0.2.1", "reserved"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("2606:4700::1111", "public"),
        ("::1", "loopback"),
        ("::", "unspecified"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "link-local"),
        ("::ffff:8.8.8.8", "public"),
        ("64:ff9b::8.8.8.8", "public"),
        ("64:ff9b::127.0.0.1", "reserved"),
        ("64:ff9b:1::8.8.8.8", "reserved"),
        ("2002:808:808::1", "public"),
        ("2002:7f00:1::1", "reserved"),
        ("2002:a9fe:a9fe::", "reserved"),
        ("2001:0:808:808:0:0:f7f7:f7f7", "reserved"),
        ("2001:db8::1", "reserved"),
        ("2606:4700::5efe:10.0.0.1", "reserved"),
        ("2606:4700::200:5efe:10.0.0.1", "reserved"),
        ("fc00::1", "private"),
        ("fd12:3456::1", "private"),
        ("fd00:ec2::254", "metadata"),
        ("fd20:ce::254", "metadata"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "reserved"),
        ("ff02::1", "multicast"),
        ("4000::1", "reserved"),
    ],
)
def test_addresses_are_what_the_registries_say(address: str, expected: str) -> None:
    assert kind(address) == expected


@given(v4 | v6)
def test_nothing_that_the_standard_library_calls_special_is_public(address: IPv4Address | IPv6Address) -> None:
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour or address in NAT64):
        return  # judged by what is in them
    if kind(address) == "public":
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast
        assert not address.is_reserved
        assert not address.is_unspecified
        assert not address.is_private


@given(v4 | SPECIAL)
def test_a_mapped_address_is_the_address_itself(address: IPv4Address) -> None:
    mapped = IPv6Address(f"::ffff:{address}")
    assert plain(mapped) == address
    assert kind(mapped) == kind(address)


@given(v4 | SPECIAL, st.integers(0, 2**64 - 1))
def test_no_tunnel_leads_to_an_address_that_is_not_public(address: IPv4Address, rest: int) -> None:
    value = int(address)
    tunnels = [
        IPv6Address((0x64FF9B << 96) | value),  # NAT64
        IPv6Address((0x2002 << 112) | (value << 80) | rest),  # 6to4
        IPv6Address((0x26064700 << 96) | (0x5EFE << 32) | value),  # ISATAP
        IPv6Address((0x20010000 << 96) | (value << 64) | (rest & 0xFFFFFFFF) ^ 0xFFFFFFFF),  # Teredo, by its server
        IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | value ^ 0xFFFFFFFF),  # Teredo, by its client
    ]
    if kind(address) != "public":
        assert {kind(tunnel) for tunnel in tunnels} == {"reserved"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_hosts_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::]", "*", "192.168.1.5", "example.org", "localhost.example"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
