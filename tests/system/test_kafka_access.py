"""A broker that asks for a password and checks what its clients may do."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from publishers.kafka import KafkaPublisher
from relay.demo.postgres import ServerError
from relay.outcome import Delivered, Outcome, Unconfirmed
from relay.testing import make_event
from tests.conftest import missing
from tests.integration.doctor_kit import Clinic
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_rig import KafkaRig
from tests.servers.process import wait_until

pytestmark = [pytest.mark.server]
PATIENCE = 20.0
USER = "User:relay"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_relay="right" user_stranger="right";'
)


class GuardedBroker(KafkaBroker):
    """Its second listener wants a password; over the first one everything is allowed."""

    @property
    def guarded_address(self) -> str:
        return f"127.0.0.1:{self.proxied_target}"

    def _properties(self) -> dict[str, str]:
        return super()._properties() | {
            "advertised.listeners": f"CLIENT://{self.address},PROXIED://{self.guarded_address}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,PROXIED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.proxied.plain.sasl.jaas.config": JAAS,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": "true",
        }


@pytest.fixture(scope="module")
def broker() -> Iterator[GuardedBroker]:
    try:
        broker = GuardedBroker()
    except ServerError as error:
        missing(str(error))
    with broker:
        yield broker


ANYTHING: Any = None
ALL_RULES = AclBindingFilter(
    ResourceType.ANY,
    ANYTHING,
    ResourcePatternType.ANY,
    ANYTHING,
    ANYTHING,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


class Access:
    """What the user may do; changes are waited for until the broker goes by them."""

    def __init__(self, broker: GuardedBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.address})

    def allow(self, topic: str, *operations: str) -> None:
        rules = {
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                USER,
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        }
        for done in self._admin.create_acls(list(rules)).values():
            done.result(PATIENCE)
        wait_until(lambda: rules <= self._rules(), PATIENCE, "the broker to know what is allowed")

    def allow_nothing(self) -> None:
        self._admin.delete_acls([ALL_RULES])[ALL_RULES].result(PATIENCE)
        wait_until(lambda: not self._rules(), PATIENCE, "the broker to know that nothing is allowed")

    def _rules(self) -> set[AclBinding]:
        return set(self._admin.describe_acls(ALL_RULES).result(PATIENCE))


@pytest.fixture
def access(broker: GuardedBroker) -> Iterator[Access]:
    access = Access(broker)
    access.allow_nothing()
    yield access
    access.allow_nothing()


@pytest.fixture
def rig(broker: GuardedBroker) -> KafkaRig:
    return KafkaRig(broker.address, via=broker.guarded_address)


def login(user: str = "relay", password: str = "right") -> dict[str, Any]:
    return {
        "config": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
    }


def publish_one(publisher: KafkaPublisher, destination: str, seconds: float = PATIENCE) -> Outcome:
    (outcome,) = publisher.publish([make_event(destination=destination)], monotonic() + seconds)
    return outcome


def eventually_delivered(publisher: KafkaPublisher, destination: str) -> bool:
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        if isinstance(publish_one(publisher, destination), Delivered):
            return True
    return False


def test_a_wrong_password_is_a_wrong_setting_and_is_said_at_once(rig: KafkaRig, access: Access) -> None:
    access.allow(rig.destination, "WRITE", "DESCRIBE")
    publisher = rig.make(**login(password="wrong-9182"))
    begun = monotonic()
    outcome = publish_one(publisher, rig.destination, seconds=60)
    assert monotonic() - begun < 20, "it did not wait for the deadline"
    begun = monotonic()
    publisher.close()
    assert monotonic() - begun < 5
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "settings"
    assert "uthentication" in outcome.reason
    assert "wrong-9182" not in outcome.reason
    publisher = rig.make(**login())
    assert isinstance(publish_one(publisher, rig.destination), Delivered)
    publisher.close()
    assert len(rig.messages()) == 1


def test_a_plain_client_at_a_port_that_wants_a_login_does_not_hang_past_its_deadline(rig: KafkaRig) -> None:
    publisher = rig.make()
    begun = monotonic()
    outcome = publish_one(publisher, rig.destination, seconds=2)
    assert monotonic() - begun < 6
    publisher.close()
    assert isinstance(outcome, Unconfirmed)


def test_a_topic_that_may_not_be_written_is_its_destinations_trouble_until_it_may(
    rig: KafkaRig, broker: GuardedBroker, access: Access
) -> None:
    other = KafkaRig(broker.address, via=broker.guarded_address)
    access.allow(other.destination, "WRITE", "DESCRIBE")
    access.allow(rig.destination, "DESCRIBE")
    publisher = rig.make(**login())
    outcomes = publisher.publish(
        [
            make_event("order:1", destination=rig.destination),
            make_event("order:2", destination=other.destination),
            make_event("order:1", destination=other.destination),
        ],
        monotonic() + PATIENCE,
    )
    assert isinstance(outcomes[0], Unconfirmed)
    assert outcomes[0].scope == "destination"
    assert "authorization" in outcomes[0].reason
    assert isinstance(outcomes[1], Delivered)
    assert not isinstance(outcomes[2], Delivered), "it is behind the first of its key"
    access.allow(rig.destination, "WRITE")
    assert eventually_delivered(publisher, rig.destination)
    publisher.close()
    assert len(rig.messages()) == 1


def test_a_topic_that_may_not_even_be_seen_is_its_destinations_trouble(
    rig: KafkaRig, broker: GuardedBroker, access: Access
) -> None:
    other = KafkaRig(broker.address, via=broker.guarded_address)
    access.allow(other.destination, "WRITE", "DESCRIBE")
    publisher = rig.make(**login())
    begun = monotonic()
    outcome = publish_one(publisher, rig.destination)
    assert monotonic() - begun < 10
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "destination"
    assert isinstance(publish_one(publisher, other.destination), Delivered)
    publisher.close()


def test_a_user_who_may_write_nowhere_breaks_the_client_which_is_made_anew(
    rig: KafkaRig, access: Access
) -> None:
    """Without a right to write the producer gets no id: a fatal error of librdkafka."""
    access.allow(rig.destination, "DESCRIBE")
    publisher = rig.make(**login())
    outcome = publish_one(publisher, rig.destination)
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "settings"
    assert publisher.incidents["client_rebuilt"] >= 1
    access.allow(rig.destination, "WRITE")
    assert eventually_delivered(publisher, rig.destination)
    publisher.close()
    assert len(rig.messages()) == 1


def test_a_limit_that_may_not_be_read_is_left_to_the_broker(broker: GuardedBroker, access: Access) -> None:
    """DESCRIBE_CONFIGS is not granted: large records go out, the broker refuses, nothing overtakes."""
    roomy = KafkaRig(broker.address, via=broker.guarded_address, config={"max.message.bytes": "5000000"})
    tight = KafkaRig(broker.address, via=broker.guarded_address, partitions=1)
    access.allow(roomy.destination, "WRITE", "DESCRIBE")
    access.allow(tight.destination, "WRITE", "DESCRIBE")
    publisher = roomy.make(**login())
    large = b"x" * 2_000_000
    outcomes = publisher.publish(
        [
            make_event("order:1", destination=roomy.destination, payload=large),
            make_event("order:1", destination=roomy.destination),
            make_event("order:2", destination=tight.destination),
            make_event("order:2", destination=tight.destination, payload=large),
            make_event("order:2", destination=tight.destination),
        ],
        monotonic() + PATIENCE,
    )
    publisher.close()
    assert [type(outcome).__name__ for outcome in outcomes] == [
        *("Delivered", "Delivered"),
        *("Delivered", "Refused", "Unconfirmed"),
    ]
    assert publisher.incidents["overtaken"] == 0
    assert len(tight.messages()) == 1


def test_no_topic_is_created_by_publishing_to_it(broker: GuardedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "allow.auto.create.topics": True})
    rig = KafkaRig(broker.address, create=False)
    publisher = rig.make()
    outcome = publish_one(publisher, rig.destination)
    publisher.close()
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "destination"
    assert rig.destination not in admin.list_topics(timeout=10).topics
    admin.list_topics("made-by-asking", timeout=10)
    deadline = monotonic() + PATIENCE
    while "made-by-asking" not in (topics := admin.list_topics(timeout=10).topics) and monotonic() < deadline:
        pass
    assert "made-by-asking" in topics, "this broker does create topics for those who ask"
    assert rig.destination not in topics


def test_doctor_says_what_the_user_may_not_see_and_who_must_allow_it(
    rig: KafkaRig, access: Access, database: str, tmp_path: Path
) -> None:
    topic = rig.destination
    clinic = Clinic(
        database,
        tmp_path,
        RELAY_PUBLISHER="kafka",
        RELAY_DESTINATION=topic,
        RELAY_KAFKA__BOOTSTRAP_SERVERS=rig.via,
        RELAY_KAFKA__CONFIG=json.dumps(login()["config"]),
    )
    found = clinic.fault("kafka", f"the topic {topic} may not be described by this user")
    assert found.severity == "error"
    assert "--allow-principal User:relay --operation Describe --operation Write" in found.fix
    access.allow(topic, "DESCRIBE", "WRITE")
    found = clinic.fault("kafka", f"the configuration of {topic} is not this user's to see")
    assert found.severity == "info"
    assert "--operation DescribeConfigs" in found.fix
    access.allow(topic, "DESCRIBE_CONFIGS")
    assert [each.what for each in clinic.faults("kafka")] == [
        f"the topic {topic} has one copy of each event: the cluster is one broker"
    ]
    clinic.environment["RELAY_KAFKA__CONFIG"] = json.dumps(login(password="wrong-9182")["config"])
    assert "refuses this client" in clinic.fault("kafka", "Authentication failed").what
