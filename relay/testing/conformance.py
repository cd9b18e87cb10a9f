"""Claims that hold for every publisher, whatever it publishes to."""

import threading
from collections import defaultdict
from time import monotonic

import pytest

from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Publisher
from relay.testing.events import make_event
from relay.testing.rig import PublisherRig

PATIENCE = 30.0


class PublisherConformance:
    """Subclass it and give it a fixture `rig`."""

    @pytest.fixture
    def rig(self) -> PublisherRig:
        raise NotImplementedError("give the suite a fixture `rig`")

    def test_every_event_has_one_outcome_and_arrives_as_it_was(self, rig: PublisherRig) -> None:
        events = [
            make_event("order:1", destination=rig.destination),
            make_event(
                "kunde:grüße-日本",
                destination=rig.destination,
                event_type="Größe",
                payload='{"text": "žluťoučký 🐎", "n": 1.10}'.encode(),
                headers={
                    "tenant": "ač",
                    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                },
            ),
        ]
        published = self._publish(rig, events)
        assert all(isinstance(outcome, Delivered) for outcome in published)
        by_id = {message.event_id: message for message in rig.received(2)}
        for event in events:
            assert by_id[event.event_id].payload == event.payload
            assert by_id[event.event_id].headers == dict(plain_headers(event))

    def test_events_of_a_key_arrive_in_order(self, rig: PublisherRig) -> None:
        events = [make_event(f"order:{n % 7}", destination=rig.destination) for n in range(700)]
        assert all(isinstance(outcome, Delivered) for outcome in self._publish(rig, events))
        lanes: dict[str, list[int]] = defaultdict(list)
        for message in rig.received(len(events)):
            lanes[message.headers["partition_key"]].append(int(message.headers["position"]))
        assert sum(len(lane) for lane in lanes.values()) == len(events)
        assert all(lane == sorted(lane) for lane in lanes.values())

    def test_outcomes_stand_in_the_order_of_the_events(self, rig: PublisherRig) -> None:
        doomed = rig.undeliverable(make_event("order:bad", destination=rig.destination))
        if doomed is None:
            return
        events = [
            make_event("order:1", destination=rig.destination),
            doomed,
            make_event("order:bad", destination=rig.destination),
            make_event("order:2", destination=rig.destination),
        ]
        outcomes = self._publish(rig, events)
        assert [isinstance(outcome, Delivered) for outcome in outcomes] == [True, False, False, True]
        assert doomed.event_id not in {message.event_id for message in rig.received(2)}

    def test_no_events_have_no_outcomes(self, rig: PublisherRig) -> None:
        assert list(self._publish(rig, [])) == []

    def test_a_call_past_its_deadline_returns_and_claims_nothing_it_did_not_do(
        self, rig: PublisherRig
    ) -> None:
        publisher = rig.make()
        event = make_event("order:1", destination=rig.destination)
        (outcome,) = publisher.publish([event], monotonic() - 1)
        publisher.close()
        if isinstance(outcome, Delivered):
            assert [message.event_id for message in rig.received(1)] == [event.event_id]

    def test_a_second_publisher_goes_on_where_the_first_was_closed(self, rig: PublisherRig) -> None:
        first, second = (make_event("order:1", destination=rig.destination) for _ in range(2))
        self._publish(rig, [first])
        self._publish(rig, [second])
        assert [message.event_id for message in rig.received(2)] == [first.event_id, second.event_id]

    def test_close_leaves_no_thread_and_may_be_called_twice(self, rig: PublisherRig) -> None:
        before = set(threading.enumerate())
        publisher = rig.make()
        publisher.publish([make_event("order:1", destination=rig.destination)], monotonic() + PATIENCE)
        publisher.close()
        publisher.close()
        assert set(threading.enumerate()) <= before

    def _publish(self, rig: PublisherRig, events: list[Event]) -> list[object]:
        publisher: Publisher = rig.make()
        try:
            return list(publisher.publish(events, monotonic() + PATIENCE))
        finally:
            publisher.close()
