"""How far this machine's clock is from the database's, as well as the way there allows to say."""

import time

from relay.doctor.finding import Finding, or_fine
from relay.doctor.patient import Patient

FAMILY = "clock"
TRIES = 5
NOTABLE_SECONDS = 2.0
# Kafka 4 refuses records that are stamped an hour ahead.
SERIOUS_SECONDS = 600.0

NOW = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"


def check(patient: Patient) -> list[Finding]:
    offset, doubt = _offset(patient)
    ahead = "ahead of" if offset < 0 else "behind"
    said = f"this machine's clock is {abs(offset):.3f} s {ahead} the database's (±{doubt:.3f} s)"
    found = []
    if abs(offset) - doubt > NOTABLE_SECONDS:
        found.append(
            Finding(
                FAMILY,
                "error" if abs(offset) - doubt > SERIOUS_SECONDS else "warning",
                said,
                "leases go by the database's clock and stay safe, but messages and logs are stamped"
                " by this one:"
                " they lie, and Kafka refuses what is stamped an hour ahead. Set both machines' clocks",
                "chronyc makestep",
            )
        )
    return or_fine(found, FAMILY, said)


def _offset(patient: Patient) -> tuple[float, float]:
    """Seconds that the database is ahead of us, and how wrong that can be; from the quickest answer."""
    tries = []
    for _ in range(TRIES):
        before, started = time.time(), time.monotonic()
        theirs = patient.row(NOW)["now"]
        took = time.monotonic() - started
        tries.append((took / 2, theirs - (before + took / 2)))
    doubt, offset = min(tries)
    return offset, doubt
