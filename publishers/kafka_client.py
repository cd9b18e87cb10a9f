"""The librdkafka producer: made when it is needed, discarded for good when anything is in doubt.

A producer that was purged, failed or inherited by a fork is never used again. A new one has no history with
the brokers, and until a partition has taken its first batch the broker takes any batch of it: with a second
batch in flight, the first one can be refused for a moment, the second accepted, and librdkafka then reports
both as delivered although the first is lost. So the partitions that have not taken anything yet from this
producer are remembered as cold, and are to be sent one record until they have.
"""

import ctypes
import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from publishers import classify, kafka_config
from publishers.classify import Trouble
from relay.outcome import Outcome

log = logging.getLogger(__name__)

CLOSE_SECONDS = 3.0
# Brokers forget a producer that was silent for long (producer.id.expiration.ms, a day by default).
WARM_SECONDS = 3600.0
SLICE_SECONDS = 0.5


class Client:
    def __init__(self, servers: str, config: Mapping[str, Any], incidents: Counter[str]) -> None:
        self._servers = servers
        self._config = config
        self._incidents = incidents
        self._producer: Producer | None = None
        self._made_in = 0
        self._batch_bytes = 0
        self._cold: dict[str, tuple[int, set[int]]] = {}
        self._warm_until = 0.0
        self.ended: Outcome | None = None  # by wrong settings: nothing will get through

    def begin(self) -> None:
        """Forget what was reported since the last call: it was about then."""
        try:
            if self.alive:
                self.producer.poll(0)
        finally:
            self.ended = None

    @property
    def alive(self) -> bool:
        if self._producer is not None and self._made_in != os.getpid():
            # A forked copy never delivers, and freeing it would wait for threads that are not here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))
            self._producer = None
        return self._producer is not None

    @property
    def producer(self) -> Producer:
        assert self._producer is not None, "make() comes first"
        return self._producer

    def fits(self, limit: int) -> bool:
        """Whether there is a producer and its batches are within this limit."""
        return self.alive and self._batch_bytes <= limit

    def make(self, batch_bytes: int) -> None:
        """A new producer; KafkaException where none can be made."""
        self.discard()
        config = kafka_config.producer_config(self._servers, self._config, batch_bytes, self._on_error)
        try:
            self._producer = Producer(config, logger=log)
        except KafkaException as error:
            self.ended = classify.outcome(Trouble.SETTINGS, error.args[0].str())
            raise
        self._made_in = os.getpid()
        self._batch_bytes = batch_bytes
        self._cold.clear()

    def cold(self, topic: str, partitions: int) -> set[int]:
        """The partitions of this topic that have taken nothing yet; whoever warms one removes it."""
        if monotonic() > self._warm_until:
            self._cold.clear()
            self._warm_until = monotonic() + WARM_SECONDS
        known = self._cold.get(topic)
        if known is None or known[0] != partitions:
            known = self._cold[topic] = (partitions, set(range(partitions)))
        return known[1]

    def wait(self, producer: Producer, deadline: float) -> bool:
        """Wait for callbacks, a little longer while they come. False: nothing came, or the time is up."""
        left = len(producer)
        while left and (patience := min(deadline - monotonic(), SLICE_SECONDS)) > 0:
            before, left = left, producer.flush(patience)
            if left == before:
                return False
        return left == 0

    def interrupted(self, producer: Producer) -> Outcome | None:
        """What ended all hope, if anything did."""
        producer.poll(0)
        return self.ended

    def discard(self) -> None:
        """Purge and drop the producer. It is never used again: what it still holds may arrive late."""
        if not self.alive:
            return
        producer, self._producer = self._producer, None
        assert producer is not None
        with suppress(KafkaException, SystemError, RuntimeError):
            producer.purge()
            producer.flush(CLOSE_SECONDS)

    def rebuild(self, error: Exception | str) -> None:
        """The client is broken: the next call gets a new one."""
        if self.alive:
            try:
                self.producer.poll(0)
            except KafkaException as behind:
                error = behind  # what lies behind a plain "fatal error"
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if isinstance(error, KafkaException) and classify.kafka(error.args[0].name()) is Trouble.SETTINGS:
            self.ended = classify.outcome(Trouble.SETTINGS, said)
        log.error("the Kafka client failed and is made anew: %s", said)
        self._incidents["client_rebuilt"] += 1
        self.discard()

    def _on_error(self, error: KafkaError) -> None:
        if classify.kafka(error.name()) is Trouble.SETTINGS:
            self.ended = classify.outcome(Trouble.SETTINGS, error.str())
            log.error("Kafka: %s", error.str())
        else:
            log.warning("Kafka: %s", error.str())
