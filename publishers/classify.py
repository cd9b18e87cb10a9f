"""Whose trouble a broker's error is: one table for all adapters.

BROKER       nobody gets through now: unconfirmed, the breaker opens
DESTINATION  nothing gets through to this destination now: the same, for it alone
SETTINGS     nothing will until somebody changes a setting: claiming stops and says so
RECORD       this event, if it is refused alone: it is parked
FATAL        the client is broken: everything in its hands is unconfirmed, a new client is made
"""

from enum import Enum

from relay.outcome import Outcome, Refused, Unconfirmed


class Trouble(Enum):
    BROKER = "broker"
    DESTINATION = "destination"
    SETTINGS = "settings"
    RECORD = "record"
    FATAL = "fatal"


# By the names librdkafka gives its codes (KafkaError.name()); what is not listed is the broker's.
KAFKA: dict[str, Trouble] = {
    "UNKNOWN_TOPIC_OR_PART": Trouble.DESTINATION,
    "_UNKNOWN_TOPIC": Trouble.DESTINATION,
    "_UNKNOWN_PARTITION": Trouble.DESTINATION,
    "TOPIC_AUTHORIZATION_FAILED": Trouble.DESTINATION,
    "TOPIC_EXCEPTION": Trouble.DESTINATION,
    "MSG_SIZE_TOO_LARGE": Trouble.RECORD,
    "RECORD_LIST_TOO_LARGE": Trouble.RECORD,
    "INVALID_RECORD": Trouble.RECORD,
    "INVALID_TIMESTAMP": Trouble.RECORD,
    "POLICY_VIOLATION": Trouble.RECORD,
    "_AUTHENTICATION": Trouble.SETTINGS,
    "SASL_AUTHENTICATION_FAILED": Trouble.SETTINGS,
    "_SSL": Trouble.SETTINGS,
    "CLUSTER_AUTHORIZATION_FAILED": Trouble.SETTINGS,
    "_FATAL": Trouble.FATAL,
}
# By AMQP reply code; `nack` and `unroutable` are the two answers that have none of their own.
RABBITMQ: dict[int | str, Trouble] = {
    "nack": Trouble.DESTINATION,
    "unroutable": Trouble.DESTINATION,
    312: Trouble.DESTINATION,  # no route
    403: Trouble.DESTINATION,  # access refused (exchange)
    404: Trouble.DESTINATION,  # not found (exchange)
    406: Trouble.RECORD,  # precondition failed: body too large
    311: Trouble.RECORD,  # content too large
    320: Trouble.BROKER,  # connection forced
    "authentication": Trouble.SETTINGS,
    "vhost": Trouble.SETTINGS,
    "tls": Trouble.SETTINGS,
    "encoding": Trouble.RECORD,
}
# By status code; other 4xx are the record's, everything else the broker's (of that host).
WEBHOOK: dict[int, Trouble] = {
    401: Trouble.DESTINATION,
    403: Trouble.DESTINATION,
    404: Trouble.DESTINATION,
    410: Trouble.DESTINATION,
    408: Trouble.BROKER,
    425: Trouble.BROKER,
    429: Trouble.BROKER,
}


def kafka(name: str) -> Trouble:
    return KAFKA.get(name, Trouble.BROKER)


def rabbitmq(code: int | str) -> Trouble:
    return RABBITMQ.get(code, Trouble.BROKER)


def webhook(status: int) -> Trouble:
    return WEBHOOK.get(status, Trouble.RECORD if 400 <= status < 500 else Trouble.BROKER)


def outcome(trouble: Trouble, reason: str, retry_after: float | None = None) -> Outcome:
    """What the relay is told of an event that met this trouble alone."""
    match trouble:
        case Trouble.RECORD:
            return Refused(reason)
        case Trouble.DESTINATION:
            return Unconfirmed(reason, "destination", retry_after)
        case Trouble.SETTINGS:
            return Unconfirmed(reason, "settings", retry_after)
        case Trouble.BROKER | Trouble.FATAL:
            return Unconfirmed(reason, "broker", retry_after)
