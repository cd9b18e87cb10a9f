"""Who may look and who may act. Pure: tokens in, answers out; nothing here does I/O.

On a loopback address without a token everybody there may look; in all other cases a token is demanded. Only
the operator's token lets anybody change something. A session is a signed cookie that no server remembers: it
is valid on every relay with the same tokens, and ends with its time or when a token changes.
"""

import base64
import binascii
import hmac
import ipaddress
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import scrypt, sha256
from time import monotonic, time
from typing import Literal, TypeAlias

from relay.settings import Settings

Role: TypeAlias = Literal["viewer", "operator"]

SESSION_SECONDS = 12 * 3600
NAME_CHARACTERS = 60
FREE_TRIES = 5
LONGEST_LOCK = 300.0
ADDRESSES_REMEMBERED = 1000


@dataclass(frozen=True)
class Session:
    role: Role
    name: str  # who the operator says to be: for the audit trail
    nonce: str
    ends: float


class Access:
    """What the settings allow, and the sessions that they sign."""

    def __init__(self, settings: Settings) -> None:
        self._viewer = settings.http_token.get_secret_value() if settings.http_token else None
        self._operator = settings.operator_token.get_secret_value() if settings.operator_token else None
        host = settings.http.rpartition(":")[0].strip("[]")
        self.loopback = is_loopback(host)
        # Slow to derive: a viewer must not find the operator's token by trying keys on a cookie of theirs.
        secret = f"{self._viewer}\0{self._operator}".encode()
        self._key = scrypt(secret, salt=b"outbox-relay pages", n=2**14, r=8, p=1, dklen=32)
        # Cookies do not know ports: relays with other tokens on the same host must not overwrite this one's.
        self.cookie = f"relay_{sha256(self._key).hexdigest()[:8]}"

    @property
    def can_operate(self) -> bool:
        """Whether anybody can be given the right to change something."""
        return self._operator is not None

    @property
    def open_to_all(self) -> bool:
        """Whether everybody who gets here may look."""
        return self.loopback and self._viewer is None

    @property
    def closed(self) -> bool:
        """Whether nobody may look, because a token is demanded and none is set."""
        return not self.loopback and self._viewer is None and self._operator is None

    def host_is_ours(self, host: str) -> bool:
        """False: a page of another site may have been led here by a name of its own (DNS rebinding).

        Where a token is demanded such a page has no session, so any name will do.
        """
        return not self.open_to_all or is_loopback(_without_port(host))

    def role_of(self, token: str) -> Role | None:
        """The role that the token gives; takes as long for a wrong one."""
        given = sha256(token.encode()).digest()
        is_operator = hmac.compare_digest(given, _digest(self._operator)) and self._operator is not None
        is_viewer = hmac.compare_digest(given, _digest(self._viewer)) and self._viewer is not None
        return "operator" if is_operator else "viewer" if is_viewer else None

    def begin(self, role: Role, name: str = "") -> str:
        """The cookie of a new session."""
        body = {
            "r": role,
            "n": name[:NAME_CHARACTERS],
            "x": secrets.token_hex(16),
            "e": time() + SESSION_SECONDS,
        }
        text = base64.urlsafe_b64encode(json.dumps(body).encode()).decode()
        return f"{text}.{self._sign('session', text)}"

    def read(self, cookie: str | None) -> Session | None:
        """The session that the cookie stands for; None: it is not ours, or over."""
        text, _, signature = (cookie or "").partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", text).encode()):
            return None
        try:
            body = json.loads(base64.urlsafe_b64decode(text))
            session = Session(body["r"], body["n"], body["x"], body["e"])
        except (binascii.Error, ValueError, KeyError, TypeError):
            return None
        return session if session.ends > time() else None

    def csrf(self, session: Session) -> str:
        return self._sign("csrf", session.nonce)

    def csrf_is_right(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.csrf(session).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), sha256).hexdigest()


class Throttle:
    """Slows down who guesses: after a few wrong tokens each further one doubles the wait."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        with self._lock:
            _, until = self._wrong.get(_network(address), (0, 0.0))
            return max(until - self._now(), 0.0)

    def wrong(self, address: str) -> None:
        with self._lock:
            network = _network(address)
            number = self._wrong.pop(network, (0, 0.0))[0] + 1
            lock = 0.0 if number < FREE_TRIES else min(2.0 ** (number - FREE_TRIES + 1), LONGEST_LOCK)
            self._wrong[network] = (number, self._now() + lock)
            while len(self._wrong) > ADDRESSES_REMEMBERED:
                self._wrong.popitem(last=False)

    def right(self, address: str) -> None:
        with self._lock:
            self._wrong.pop(_network(address), None)


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def same_origin(origin: str | None, host: str) -> bool:
    """Whether a request that changes something comes from these pages; browsers always say where from."""
    return origin is not None and origin.partition("://")[2].lower() == host.lower()


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


def _digest(token: str | None) -> bytes:
    return sha256((token or "").encode()).digest()


def _network(address: str) -> str:
    """Whoever has one address of IPv6 has all of its network."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else address
