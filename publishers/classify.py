"""Whose trouble a broker's error is: one table for all adapters.

BROKER       nobody gets through now: unconfirmed, the breaker opens
DESTINATION  nothing gets through to this destination now: the same, for it alone
HOST         the same for a webhook's host: each is a broker of its own and holds up none but itself
SETTINGS     nothing will until somebody changes a setting: claiming stops and says so
RECORD       this event, if it is refused alone: it is parked
EVENT        this event, and perhaps not for ever: unconfirmed, an attempt of it, parked after the last
FATAL        the client is broken: everything in its hands is unconfirmed, a new client is made
"""

from enum import Enum

from relay.outcome import Outcome, Refused, Unconfirmed


class Trouble(Enum):
    BROKER = "broker"
    DESTINATION = "destination"
    HOST = "host"
    SETTINGS = "settings"
    RECORD = "record"
    EVENT = "event"
    FATAL = "fatal"


# By the names librdkafka gives its codes (KafkaError.name()); what is not listed is the broker's.
KAFKA: dict[str, Trouble] = {
    "UNKNOWN_TOPIC_OR_PART": Trouble.DESTINATION,
    "UNKNOWN_TOPIC_ID": Trouble.DESTINATION,
    "_UNKNOWN_TOPIC": Trouble.DESTINATION,
    "_UNKNOWN_PARTITION": Trouble.DESTINATION,
    "TOPIC_AUTHORIZATION_FAILED": Trouble.DESTINATION,
    "TOPIC_EXCEPTION": Trouble.DESTINATION,  # not a topic's name, or an internal topic
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": Trouble.DESTINATION,  # the topic's format knows no headers
    "MSG_SIZE_TOO_LARGE": Trouble.RECORD,
    "RECORD_LIST_TOO_LARGE": Trouble.RECORD,
    "INVALID_RECORD": Trouble.RECORD,
    "POLICY_VIOLATION": Trouble.RECORD,
    # The client stamps records with this machine's clock; Kafka 4 refuses what is an hour ahead.
    "INVALID_TIMESTAMP": Trouble.SETTINGS,
    "_AUTHENTICATION": Trouble.SETTINGS,
    "SASL_AUTHENTICATION_FAILED": Trouble.SETTINGS,
    "UNSUPPORTED_SASL_MECHANISM": Trouble.SETTINGS,
    "ILLEGAL_SASL_STATE": Trouble.SETTINGS,
    "DELEGATION_TOKEN_AUTH_DISABLED": Trouble.SETTINGS,
    "DELEGATION_TOKEN_NOT_FOUND": Trouble.SETTINGS,
    "DELEGATION_TOKEN_EXPIRED": Trouble.SETTINGS,
    "_SSL": Trouble.SETTINGS,
    "CLUSTER_AUTHORIZATION_FAILED": Trouble.SETTINGS,
    "_INVALID_ARG": Trouble.SETTINGS,
    "_UNSUPPORTED_FEATURE": Trouble.SETTINGS,  # a broker that is too old for an idempotent producer
    "UNSUPPORTED_VERSION": Trouble.SETTINGS,
    "INVALID_REQUIRED_ACKS": Trouble.SETTINGS,
    "UNSUPPORTED_COMPRESSION_TYPE": Trouble.SETTINGS,
    "_FATAL": Trouble.FATAL,
    "_STATE": Trouble.FATAL,
    "_FENCED": Trouble.FATAL,
    "_GAPLESS_GUARANTEE": Trouble.FATAL,
    "_INCONSISTENT": Trouble.FATAL,
    "_DESTROY": Trouble.FATAL,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": Trouble.FATAL,
    "UNKNOWN_PRODUCER_ID": Trouble.FATAL,
    "INVALID_PRODUCER_EPOCH": Trouble.FATAL,
    "INVALID_PRODUCER_ID_MAPPING": Trouble.FATAL,
    "PRODUCER_FENCED": Trouble.FATAL,
}
# By AMQP reply code; the words are for answers that have none of their own.
RABBITMQ: dict[int | str, Trouble] = {
    "nack": Trouble.DESTINATION,
    "unroutable": Trouble.DESTINATION,
    312: Trouble.DESTINATION,  # no route
    313: Trouble.DESTINATION,  # no consumers
    403: Trouble.DESTINATION,  # access refused (exchange)
    404: Trouble.DESTINATION,  # not found (exchange)
    405: Trouble.DESTINATION,  # resource locked
    406: Trouble.RECORD,  # precondition failed: body too large
    311: Trouble.RECORD,  # content too large
    "encoding": Trouble.RECORD,
    320: Trouble.BROKER,  # connection forced
    506: Trouble.BROKER,  # resource error: the broker is out of something
    541: Trouble.BROKER,  # internal error
    402: Trouble.SETTINGS,  # invalid path: no such virtual host
    530: Trouble.SETTINGS,  # not allowed: the virtual host is missing, closed to the user or full
    "authentication": Trouble.SETTINGS,
    "vhost": Trouble.SETTINGS,
    "tls": Trouble.SETTINGS,
    501: Trouble.FATAL,  # frame error
    502: Trouble.FATAL,  # syntax error
    503: Trouble.FATAL,  # command invalid
    504: Trouble.FATAL,  # channel error
    505: Trouble.FATAL,  # unexpected frame
    540: Trouble.FATAL,  # not implemented
}
# By status code; other 4xx are the record's, 3xx the destination's, everything else the host's.
# The words are for what happens without an answer.
WEBHOOK: dict[int | str, Trouble] = {
    401: Trouble.DESTINATION,
    403: Trouble.DESTINATION,
    404: Trouble.DESTINATION,
    410: Trouble.DESTINATION,
    408: Trouble.HOST,  # request timeout
    409: Trouble.EVENT,  # conflict: also with the same Idempotency-Key, which is still in progress
    421: Trouble.HOST,  # misdirected request: about the connection
    423: Trouble.EVENT,  # locked
    425: Trouble.HOST,  # too early
    429: Trouble.HOST,  # too many requests
    "timeout": Trouble.HOST,
    "connection": Trouble.HOST,
    "resolver": Trouble.HOST,
    "protocol": Trouble.HOST,
    "tls": Trouble.HOST,
    "private": Trouble.DESTINATION,
    "url": Trouble.RECORD,  # the setting was checked at the start: it is the row's own
}


def kafka(name: str) -> Trouble:
    return KAFKA.get(name, Trouble.BROKER)


def rabbitmq(code: int | str) -> Trouble:
    return RABBITMQ.get(code, Trouble.BROKER)


def webhook(status: int | str) -> Trouble:
    if (listed := WEBHOOK.get(status)) is not None:
        return listed
    match status:
        case int() if 300 <= status < 400:
            return Trouble.DESTINATION
        case int() if 400 <= status < 500:
            return Trouble.RECORD
    return Trouble.HOST


def outcome(trouble: Trouble, reason: str, retry_after: float | None = None) -> Outcome:
    """What the relay is told of an event that met this trouble alone."""
    match trouble:
        case Trouble.RECORD:
            return Refused(reason)
        case Trouble.EVENT:
            return Unconfirmed(reason, "event", retry_after)
        case Trouble.DESTINATION:
            return Unconfirmed(reason, "destination", retry_after)
        case Trouble.HOST:
            return Unconfirmed(reason, "destination", retry_after, holds="host")
        case Trouble.SETTINGS:
            return Unconfirmed(reason, "settings", retry_after)
        case Trouble.BROKER | Trouble.FATAL:
            return Unconfirmed(reason, "broker", retry_after)
