"""Settings that leave too little time. What contradicts itself is refused where settings are read."""

from relay.doctor.finding import Finding, or_fine
from relay.settings import Settings

FAMILY = "settings"
# What a settle may need after the last confirmation, on a database that is busy.
MARGIN_SECONDS = 5.0
LARGEST_SHARE = 0.8


def check(settings: Settings) -> list[Finding]:
    found = []
    lease, publish = settings.lease_seconds, settings.publish_seconds
    if publish > LARGEST_SHARE * lease or lease - publish < MARGIN_SECONDS:
        longer = max(3 * publish, publish + MARGIN_SECONDS)
        found.append(
            Finding(
                FAMILY,
                "warning",
                f"the lease ({lease:g} s) hardly outlasts the publish deadline ({publish:g} s)",
                "a batch that takes its time is confirmed, but settled too late: its events are"
                " published again",
                f"export RELAY_LEASE_SECONDS={longer:g}",
            )
        )
    heartbeat, stale = settings.heartbeat_seconds, settings.stale_seconds
    if stale < 2 * heartbeat:
        found.append(
            Finding(
                FAMILY,
                "warning",
                f"stale_seconds ({stale:g} s) is less than two heartbeats ({heartbeat:g} s each)",
                "a worker that is late once is taken for dead, and its events are published again",
                f"export RELAY_STALE_SECONDS={3 * heartbeat:g}",
            )
        )
    return or_fine(
        found, FAMILY, f"lease {lease:g} s, publish deadline {publish:g} s, heartbeat {heartbeat:g} s"
    )
