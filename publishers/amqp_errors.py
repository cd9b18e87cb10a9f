"""Why a connection to RabbitMQ failed, as a sentence that never shows the password. Pure."""

import re
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

from pika.exceptions import (
    AMQPHeartbeatTimeout,
    ChannelClosed,
    ConnectionClosed,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from publishers import classify
from publishers.classify import Trouble


class Lost(NamedTuple):
    """Why a connection is gone. `stalled`: it was given up because confirms did not come."""

    trouble: Trouble
    reason: str
    stalled: bool = False


def explain(error: BaseException, parameters: Any) -> Lost:
    where = f"RabbitMQ at {parameters.host}:{parameters.port}"
    user = getattr(parameters.credentials, "username", "")
    for cause in _causes(error):
        text = " ".join(str(part) for part in cause.args)
        code: int | str = "unknown"
        match cause:
            # The client guesses these two from when it was hung up on: it takes the broker's word to be sure.
            case ProbableAuthenticationError() if "(403)" in text:
                code = "authentication"
                reason = f"refused the login of user '{user}': check the user and password in [rabbitmq] url"
            case ProbableAccessDeniedError() if "(530)" in text:
                # A virtual host that is down or full of connections is a matter of time.
                code = "unknown" if re.search(r"limit|is down", text) else "vhost"
                reason = f"refused virtual host '{parameters.virtual_host}' to user '{user}': {_said(text)}"
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                continue
            case ssl.SSLError():
                code = "tls"
                reason = f"cannot be reached by TLS ({cause.reason or cause}): check [rabbitmq] url"
            case ConnectionClosed() | ChannelClosed():
                code = cause.reply_code
                reason = f"closed the connection: {cause.reply_text}"
            case IncompatibleProtocolError():
                reason = (
                    "hung up at once: is it up, and does [rabbitmq] url need amqps:// instead of amqp://?"
                )
            case AMQPHeartbeatTimeout():
                reason = "went silent"
            case StreamLostError():
                reason = "hung up"
            case _:
                continue
        return Lost(classify.rabbitmq(code), f"{where} {reason}")
    return Lost(Trouble.BROKER, f"{where} cannot be reached: {_root(error)}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it wraps; the client nests them in several ways."""
    yield error
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    for cause in inner:
        if isinstance(cause, BaseException):
            yield from _causes(cause)


def _root(error: BaseException) -> str:
    *_, last = _causes(error)
    return str(last) or type(last).__name__


def _said(text: str) -> str:
    """The broker's words, out of the client's description of an error."""
    return text[text.find("NOT_ALLOWED") :].rstrip(")'\"")
