"""What /metrics, /livez and /readyz answer, whichever server asks. A probe says None, or what is wrong."""

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from prometheus_client.exposition import choose_encoder

from relay.metrics import Metrics

TEXT = "text/plain; charset=utf-8"

Probe: TypeAlias = Callable[[], str | None]


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


def always() -> None:
    """The probe that finds nothing wrong."""


def metrics_answer(metrics: Metrics, accept: str) -> Answer:
    """The metrics in the format that was asked for."""
    encode, content_type = choose_encoder(accept)
    return Answer(HTTPStatus.OK, encode(metrics.registry), content_type)


def livez(liveness: Probe) -> Answer:
    return _probed(liveness, "alive")


def readyz(readiness: Probe) -> Answer:
    return _probed(readiness, "ready")


def _probed(probe: Probe, well: str) -> Answer:
    wrong = probe()
    status = HTTPStatus.OK if wrong is None else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, f"{wrong or well}\n".encode())
