"""Where a webhook goes and what signs it, read from text. Pure: nothing here does I/O.

A destination that is no http(s) URL has no address; nothing here quotes one, since URLs contain secrets.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import httpcore
import httpx

from relay.errors import SettingsError

_HARMLESS = re.compile(r"[\w.{}-]{1,100}")


class Target(NamedTuple):
    host: str  # with its port where that is not the scheme's own: what people are told
    name: str  # without the port
    url: httpcore.URL | None  # None: not an address to post to
    credentials: tuple[str, str] | None


@lru_cache(maxsize=4096)
def target_of(destination: str) -> Target:
    try:
        url = httpx.URL(destination)
    except httpx.InvalidURL:
        return _no_target(destination)
    # No port at all means the scheme's own; 0 is nobody's.
    a_port = url.port is None or 0 < url.port < 65536
    if url.scheme not in ("http", "https") or not url.raw_host or not a_port:
        return _no_target(destination)
    credentials = (url.username, url.password) if url.userinfo else None
    address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    return Target(url.netloc.decode(), url.raw_host.decode(), address, credentials)


def _no_target(destination: str) -> Target:
    # A word such as a topic's name may be shown; what could be a mistyped URL may not.
    shown = f"'{destination}'" if _HARMLESS.fullmatch(destination) else "of the event"
    return Target(shown, shown, None, None)


class Secrets:
    """One secret for all hosts, or one by host; `of` says which signs for a target, if any."""

    def __init__(self, secret: object) -> None:
        self._all: str | None = None
        self._by_host: dict[str, str] = {}
        if isinstance(secret, Mapping):
            self._by_host = {_host(name): _revealed(value) for name, value in secret.items()}
        elif secret is not None:
            self._all = _revealed(secret)

    def of(self, target: Target) -> str | None:
        own = self._by_host.get(target.host) or self._by_host.get(target.name)
        return own or self._by_host.get(target.name.rstrip(".")) or self._all


def _host(name: object) -> str:
    try:
        url = httpx.URL(f"https://{name}")
    except httpx.InvalidURL:
        url = httpx.URL("")
    if not url.host or url.userinfo or url.query or url.raw_path != b"/":
        raise SettingsError(
            f"[webhook] secret: {name!r} is no host name: use example.com or example.com:8443"
        )
    return url.netloc.decode()


def _revealed(secret: object) -> str:
    reveal = getattr(secret, "get_secret_value", None)
    value = secret if reveal is None else reveal()
    if not isinstance(value, str) or not value:
        raise SettingsError("[webhook] secret must be text that is not empty, or a table of such by host")
    return value
