"""Whether the exchanges are there and a queue takes what they are sent.

Over AMQP nobody can ask what is bound to an exchange: it takes a message to see, and a message could reach a
consumer or a dead-letter queue, even one that expires at once. So nothing is sent. Bindings are read from the
management API where `[rabbitmq] management_url` says where that is; without it, what the relay was told is
looked at: events that came back because no queue took them.
"""

import base64
import json
import re
from collections.abc import Iterable
from contextlib import closing
from shlex import quote
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote as url_quote
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pika
from pika.adapters.utils.connection_workflow import (
    AMQPConnectorException,
    AMQPConnectorStackTimeout,
)
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionBlockedTimeout

from publishers.amqp_errors import explain
from publishers.rabbitmq import DEFAULT_EXCHANGE, connection_parameters
from relay.doctor.backlog import Route, destinations
from relay.doctor.finding import Finding, in_time, or_fine, out_of_time
from relay.settings import Settings

FAMILY = "rabbitmq"
SECONDS = 4
MOST_EXCHANGES = 50
TIMEOUTS = (AMQPConnectorStackTimeout, ConnectionBlockedTimeout, TimeoutError)
SEE = "export RELAY_RABBITMQ__MANAGEMENT_URL=http://user:password@host:15672"


def check(settings: Settings, routes: list[Route]) -> list[Finding]:
    parameters = connection_parameters(settings.rabbitmq.url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = SECONDS
    parameters.heartbeat = SECONDS  # ends the wait for a node that falls silent
    parameters.connection_attempts = 1
    vhost = parameters.virtual_host
    where = f"RabbitMQ at {parameters.host}:{parameters.port}, virtual host {vhost}"
    names = destinations(settings.destination, routes)
    left = names[MOST_EXCHANGES:]
    del names[MOST_EXCHANGES:]
    exchanges = [name for name in names if name != DEFAULT_EXCHANGE]
    queues = _queues(settings.rabbitmq.routing_key, routes)
    try:
        with closing(pika.BlockingConnection(parameters)) as connection:
            no_exchange = _absent(connection, "exchange", exchanges)
            no_queue = _absent(connection, "queue", queues)
    except (AMQPError, AMQPConnectorException, OSError) as error:
        late = isinstance(error, TIMEOUTS)
        said = f"{where} did not answer within {SECONDS} s" if late else explain(error, parameters).reason
        why = "nothing is published until it can be reached; events wait and lose nothing by it"
        fix = "export RELAY_RABBITMQ__URL=amqp://user:password@host:5672/%2F"
        return [Finding(FAMILY, "error", said, why, fix)]
    if not names:
        what = f"{where}; no exchange to look at while destination is a template and nothing waits"
        return [Finding(FAMILY, "info", what)]
    found = [_no_queue(name, vhost) for name in no_queue]
    if not settings.rabbitmq.declare:
        found += [_no_exchange(name, said, vhost) for name, said in no_exchange.items()]
    found += [*_returned(routes, vhost), *out_of_time(FAMILY, left)]
    found += _bindings(settings, vhost, [name for name in exchanges if name not in no_exchange])
    return or_fine(found, FAMILY, f"{where}; exchanges: {', '.join(names)}")


def _no_exchange(name: str, said: str, vhost: str) -> Finding:
    if "NOT_FOUND" not in said:
        return Finding(
            FAMILY, "warning", f"the exchange {name} cannot be looked at: {said}", "is it ours to use?"
        )
    fix = "\n".join(_declared(name, vhost))
    return Finding(
        FAMILY, "error", f"the exchange {name} does not exist", "its events wait until it does", fix
    )


def _no_queue(name: str, vhost: str) -> Finding:
    why = "the default exchange leads to the queue of the routing key's name: its events come back"
    fix = f"{_admin(vhost)} declare queue name={quote(name)} durable=true"
    return Finding(FAMILY, "error", f"the queue {name} does not exist", why, fix)


def _queues(template: str, routes: list[Route]) -> list[str]:
    """Routing keys of the events that go to the default exchange."""
    return list(
        dict.fromkeys(
            template.replace("{event_type}", route.event_type).replace("{key_type}", route.key_type)
            for route in routes
            if route.destination == DEFAULT_EXCHANGE
        )
    )


def _absent(connection: Any, kind: str, names: list[str]) -> dict[str, str]:
    """Those that are not there, and what the broker says of each. A refusal closes the channel."""
    said = {}
    for name in names:
        channel = connection.channel()
        try:
            if kind == "queue":
                channel.queue_declare(name, passive=True)
            else:
                channel.exchange_declare(name, passive=True)
            channel.close()
        except ChannelClosedByBroker as closed:
            said[name] = str(closed.reply_text)
    return said


def _admin(vhost: str) -> str:
    return f"rabbitmqadmin --vhost={quote(vhost)}"


def _declared(name: str, vhost: str) -> list[str]:
    exchange = f"{_admin(vhost)} declare exchange name={quote(name)} type=topic durable=true"
    return [exchange, *_bound(name, vhost)]


def _bound(name: str, vhost: str, routing_key: str = "#") -> list[str]:
    binding = f"source={quote(name)} destination={quote(name)} routing_key={quote(routing_key)}"
    return [
        f"{_admin(vhost)} declare queue name={quote(name)} durable=true",
        f"{_admin(vhost)} declare binding {binding}",
    ]


_RETURNED = re.compile(r"no queue takes exchange '(.+)' with routing key '(.*)': bind one")


def _returned(routes: list[Route], vhost: str) -> Iterable[Finding]:
    """Events that wait because no queue took them: proof, while they wait."""
    for route in routes:
        if route.unroutable and (match := _RETURNED.search(route.unroutable)):
            exchange, routing_key = match.groups()
            what = f"no queue takes {route.event_type} from the exchange {exchange}: it came back"
            why = "they wait, and their keys with them, until a queue is bound for that routing key"
            yield Finding(FAMILY, "error", what, why, "\n".join(_bound(exchange, vhost, routing_key)))


def _bindings(settings: Settings, vhost: str, names: list[str]) -> Iterable[Finding]:
    if settings.rabbitmq.management_url is None:
        if names:
            what = f"whether queues are bound to {', '.join(names)} cannot be seen over AMQP"
            why = "an event that no queue takes comes back and waits: nothing is lost, but only then it shows"
            yield Finding(FAMILY, "info", what, why, SEE)
        return
    base = settings.rabbitmq.management_url.get_secret_value()
    skipped: list[str] = []
    for name in in_time(names, skipped):
        try:
            bindings = _ask(
                base, f"/api/exchanges/{url_quote(vhost, '')}/{url_quote(name, '')}/bindings/source"
            )
        except (OSError, ValueError) as error:
            said = f"answered {error.code}" if isinstance(error, HTTPError) else "cannot be reached"
            what = f"the management API at {urlsplit(base).hostname} {said}"
            why = (
                "so nobody knows whether queues are bound: check [rabbitmq] management_url, its user and"
                " password"
            )
            yield Finding(FAMILY, "warning", what, why, SEE)
            return
        if not bindings:
            what = f"the exchange {name} leads to no queue: nothing is bound to it"
            why = "every event that is sent to it comes back, and waits until a queue is bound"
            yield Finding(FAMILY, "error", what, why, "\n".join(_bound(name, vhost)))
    yield from out_of_time(FAMILY, skipped)


def _ask(base: str, path: str) -> Any:
    """What the management API answers; OSError where it does not, ValueError where that is no JSON."""
    parts = urlsplit(base)
    host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    request = Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}{path}")
    if parts.scheme not in ("http", "https"):
        raise ValueError("not an http or https URL")
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    with urlopen(request, timeout=SECONDS) as response:
        return json.load(response)
