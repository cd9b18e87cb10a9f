"""Whether the topics are there, keep what they acknowledge, and take what is written.

Asks by the publisher's own settings, and changes nothing. What the user may not see is said, not guessed.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from publishers import classify, kafka_config
from publishers.classify import Trouble
from relay.doctor.backlog import Route, destinations
from relay.doctor.finding import Finding, in_time, or_fine, out_of_time
from relay.doctor.kafka_commands import Commands
from relay.settings import Settings

FAMILY = "kafka"
SECONDS = 4.0
MOST_TOPICS = 50
SAFE_REPLICAS = 3
# Key, headers and framing of a record beside its payload, at least.
FRAMING = 512


class Topic(NamedTuple):
    name: str
    partitions: list[list[int]]  # the brokers that have a copy of each
    leaderless: list[int]
    config: dict[str, str] | None  # None: not ours to read


def check(settings: Settings, routes: list[Route]) -> list[Finding]:
    servers = str(settings.kafka.bootstrap_servers)
    config = dict(settings.kafka.config)
    commands = Commands(
        servers, secured="security.protocol" in config, user=str(config.get("sasl.username", "…"))
    )
    cluster = Cluster(kafka_config.client_config(servers, config))
    try:
        brokers = cluster.brokers()
    except KafkaException as error:
        return [_unreachable(servers, error, cluster)]
    names = destinations(settings.destination, routes)
    if not names:
        what = (
            f"{len(brokers)} brokers; no topic to look at while destination is a template and nothing waits"
        )
        return [Finding(FAMILY, "info", what)]
    found: list[Finding] = []
    skipped = names[MOST_TOPICS:]
    for name in in_time(names[:MOST_TOPICS], skipped):
        topic = cluster.topic(name)
        if isinstance(topic, KafkaError):
            found.append(_missing(name, topic, brokers, commands))
        else:
            largest = max((route.largest for route in routes if route.destination == name), default=0)
            found += [*_copies(topic, brokers, commands), *_configured(topic, largest, brokers, commands)]
    found += out_of_time(FAMILY, skipped)
    return or_fine(found, FAMILY, f"{len(brokers)} brokers; topics: {', '.join(names)}")


class Cluster:
    """Questions to the brokers; each is answered within seconds, or with an error."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.errors: list[KafkaError] = []
        self._admin = AdminClient(dict[str, Any](config) | {"error_cb": self.errors.append, "log_level": 0})

    def brokers(self) -> list[int]:
        """Waits no longer once the brokers have refused this client, which only `poll` tells."""
        asked = self._admin.describe_cluster(request_timeout=SECONDS)
        until = monotonic() + SECONDS + 1
        while not asked.done() and monotonic() < until and not self.refusals():
            self._admin.poll(0.1)
        if self.refusals() and not asked.done():
            raise KafkaException(self.refusals()[0])
        return [node.id for node in _answer(asked).nodes]

    def refusals(self) -> list[KafkaError]:
        return [error for error in self.errors if classify.kafka(error.name()) is Trouble.SETTINGS]

    def topic(self, name: str) -> Topic | KafkaError:
        try:
            asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=SECONDS)
            described = _answer(asked[name])
        except KafkaException as error:
            return error.args[0]  # type: ignore[no-any-return]
        except ValueError as error:
            return KafkaError(KafkaError.TOPIC_EXCEPTION, str(error))
        copies = [[node.id for node in partition.replicas] for partition in described.partitions]
        leaderless = [partition.id for partition in described.partitions if partition.leader is None]
        return Topic(name, copies, leaderless, self._config(name))

    def _config(self, name: str) -> dict[str, str] | None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            (asked,) = self._admin.describe_configs([resource], request_timeout=SECONDS).values()
            return {entry.name: entry.value for entry in _answer(asked).values()}
        except KafkaException:
            return None


def _answer(asked: "Future[Any]") -> Any:
    try:
        return asked.result(SECONDS + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _unreachable(servers: str, error: KafkaException, cluster: Cluster) -> Finding:
    if wrong := cluster.refusals():
        why = "nothing is published until [kafka.config] is right: the user, the password, the certificates"
        return Finding(FAMILY, "error", f"Kafka at {servers} refuses this client: {wrong[0].str()}", why)
    said = (cluster.errors or [error.args[0]])[0].str()
    why = "nothing is published until it can be reached; events wait and lose nothing by it"
    fix = "export RELAY_KAFKA__BOOTSTRAP_SERVERS=host:9092"
    return Finding(FAMILY, "error", f"Kafka at {servers} cannot be reached: {said}", why, fix)


def _missing(name: str, error: KafkaError, brokers: list[int], commands: Commands) -> Finding:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        what = f"the topic {name} may not be described by this user"
        why = "the relay asks for a topic's partitions before it sends anything"
        return Finding(FAMILY, "error", what, why, commands.allow(name, "Describe", "Write"))
    if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Finding(
            FAMILY, "error", f"the topic {name} cannot be looked at: {error.str()}", "is it a topic?"
        )
    replicas = min(SAFE_REPLICAS, len(brokers))
    why = (
        "its events wait until it is there; the relay creates no topic, since a mistyped name would"
        " swallow events"
    )
    return Finding(FAMILY, "error", f"the topic {name} does not exist", why, commands.create(name, replicas))


def _copies(topic: Topic, brokers: list[int], commands: Commands) -> Iterable[Finding]:
    if topic.leaderless:
        what = f"partitions {topic.leaderless} of {topic.name} have no leader"
        why = "nothing is published to them until a broker that has a copy is back"
        yield Finding(FAMILY, "error", what, why, commands.describe(topic.name))
    replicas = min(len(copies) for copies in topic.partitions)
    safe = min(SAFE_REPLICAS, len(brokers))
    if replicas < safe:
        yield Finding(
            FAMILY,
            "error" if replicas == 1 else "warning",
            f"the topic {topic.name} has {_copies_of(replicas)} of each event, and the cluster could"
            f" keep {safe}",
            "an event that was reported as delivered is lost with the broker that has it"
            if replicas == 1
            else (
                "while one broker is down for maintenance, the loss of another loses events or"
                " stops publishing"
            ),
            commands.reassign(topic.name, topic.partitions, brokers, safe),
        )
    elif replicas == 1:
        what = f"the topic {topic.name} has one copy of each event: the cluster is one broker"
        why = "good for development; an event that was reported as delivered is lost with that broker's disk"
        yield Finding(FAMILY, "warning", what, why)


def _copies_of(number: int) -> str:
    return "one copy" if number == 1 else f"{number} copies"


def _configured(topic: Topic, largest: int, brokers: list[int], commands: Commands) -> Iterable[Finding]:
    if topic.config is None:
        what = f"the configuration of {topic.name} is not this user's to see"
        why = "so neither its in-sync replicas nor its limits were looked at"
        yield Finding(FAMILY, "info", what, why, commands.allow(topic.name, "DescribeConfigs"))
        return
    replicas = min(len(copies) for copies in topic.partitions)
    insync = int(topic.config.get("min.insync.replicas") or 1)
    if replicas > 1 and insync < 2:
        what = f"min.insync.replicas of {topic.name} is {insync}, with {replicas} copies"
        why = (
            "an event is acknowledged when a single broker has it, and lost if that one fails before the"
            " others catch up"
        )
        yield Finding(FAMILY, "error", what, why, commands.configure(topic.name, "min.insync.replicas", 2))
    elif replicas > 1 and insync >= replicas:
        what = f"min.insync.replicas of {topic.name} is {insync}, with {replicas} copies"
        why = "publishing stops whenever a single broker is down"
        if replicas > 2:
            yield Finding(
                FAMILY,
                "warning",
                what,
                why,
                commands.configure(topic.name, "min.insync.replicas", replicas - 1),
            )
        else:
            yield Finding(
                FAMILY,
                "warning",
                what,
                f"{why}: three copies would allow for one",
                commands.describe(topic.name),
            )
    if topic.config.get("unclean.leader.election.enable") == "true":
        what = f"unclean.leader.election.enable is on for {topic.name}"
        why = (
            "a broker that lacks the newest events may become leader, and they are lost although acknowledged"
        )
        yield Finding(
            FAMILY,
            "error",
            what,
            why,
            commands.configure(topic.name, "unclean.leader.election.enable", "false"),
        )
    limit = int(topic.config.get("max.message.bytes") or 0)
    if 0 < limit < largest + FRAMING:
        what = (
            f"max.message.bytes of {topic.name} is {limit:,}, and an event for it has a payload of"
            f" {largest:,} bytes"
        )
        why = (
            "the topic refuses it: the event becomes a dead letter, or holds its key where on_exhausted"
            " is 'block'"
        )
        wanted = 1 << (largest + FRAMING).bit_length()
        yield Finding(FAMILY, "error", what, why, commands.configure(topic.name, "max.message.bytes", wanted))
