"""A relay process: registrations one after another, until it is told to stop.

relay.py runs the process; registration.py is one life of a worker and starts the threads, a module each:
claimer → publishing → settler, and keeper beside them.
"""

from relay.worker.relay import run

__all__ = ["run"]
