"""Which addresses a webhook may reach: those of the public internet, unless private ones are allowed.

A name is resolved once and its addresses are checked; the connection is made to one of these, not to the
name. A name that points elsewhere a moment later (DNS rebinding) therefore reaches nothing it should not.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple, TypeAlias

Resolver: TypeAlias = Callable[..., list[Any]]  # as socket.getaddrinfo
MOST_ADDRESSES = 4

_NAT64 = IPv6Network("64:ff9b::/96")
# Not public either, whatever the installed Python's list says.
_SPECIAL_4 = tuple(map(IPv4Network, ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")))
_SPECIAL_6 = tuple(map(IPv6Network, ("64:ff9b:1::/48", "100::/64", "2001::/23", "3fff::/20", "5f00::/16")))


class AddressRefused(Exception):
    """Every address of the name is private; the text says which."""


class Address(NamedTuple):
    family: int
    sockaddr: tuple[Any, ...]


def resolve(host: str, port: int, allow_private: bool, getaddrinfo: Resolver) -> list[Address]:
    """The addresses to try in turn. Raises AddressRefused, or OSError where the name is not found."""
    found = getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(Address(entry[0], entry[4]) for entry in found))
    allowed = [address for address in addresses if allow_private or is_public(address.sockaddr[0])]
    if addresses and not allowed:
        raise AddressRefused(str(addresses[0].sockaddr[0]))
    return allowed[:MOST_ADDRESSES]


def is_public(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _public(address) and not any(address in network for network in _SPECIAL_4)
    if any(address in network for network in _SPECIAL_6) or address.is_site_local:
        return False
    # An IPv6 address that stands for an IPv4 one reaches what that one reaches.
    inner = _inner(address)
    return is_public(str(inner)) if inner is not None else _public(address)


def _public(address: IPv4Address | IPv6Address) -> bool:
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_loopback or address.is_unspecified
    )


def _inner(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
