"""Signs webhook bodies and verifies signatures: `t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>." + body>`.

`verify` says yes only to a signature made with the secret, over exactly these bytes, within the tolerance.
Everything else, however malformed, is no: it never raises on what a stranger sent.
"""

import hmac
import re
from hashlib import sha256
from time import time

HEADER = "X-Signature"

_SECONDS = re.compile(r"[0-9]{1,15}")


def sign(secret: str, body: bytes, at: int | None = None) -> str:
    """The header's value for a body that is sent now."""
    seconds = str(int(time()) if at is None else at)
    return f"t={seconds},v1={_digest(secret, seconds, body)}"


def verify(secret: str, header: str, body: bytes, tolerance: float = 300, now: float | None = None) -> bool:
    """Whether the body was signed with the secret, at most `tolerance` seconds ago (or ahead)."""
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not _SECONDS.fullmatch(times[0]):
        return False
    if abs((time() if now is None else now) - int(times[0])) > tolerance:
        return False
    expected = _digest(secret, times[0], body).encode()
    # A lone surrogate, which is how some servers hand over a byte that is not UTF-8, becomes a "?".
    given = [value.encode(errors="replace") for name, _, value in parts if name == "v1"]
    # More than one while a secret changes: any of them will do.
    return any(hmac.compare_digest(expected, signature) for signature in given)


def _digest(secret: str, seconds: str, body: bytes) -> str:
    return hmac.new(secret.encode(), seconds.encode() + b"." + body, sha256).hexdigest()
