"""Everything that can go wrong, in one tree.

RelayError                what a user is told in one sentence; the command line exits 1
├── SettingsError         a setting is missing, unknown or unsafe; the command line exits 2
│   └── MissingExtra      an optional dependency is not installed
├── SchemaError           the tables are missing, foreign, or of another version
├── InvalidEvent          an event that must not reach the database (raised by `emit`)
├── NotInTransaction      an INSERT that would commit by itself (raised by `emit`)
├── LeaseLost             a settle found its lease gone: another worker owns the events now
└── Overtaken             a settle changed fewer rows than it should: rolled back
"""


class RelayError(Exception):
    """Base of all errors of the relay; its text is a sentence for the user."""


class SettingsError(RelayError):
    pass


class MissingExtra(SettingsError):
    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs the extra '{extra}': pip install 'outbox-relay[{extra}]'")


class SchemaError(RelayError):
    pass


class InvalidEvent(RelayError, ValueError):
    pass


class NotInTransaction(RelayError):
    pass


class LeaseLost(RelayError):
    pass


class Overtaken(RelayError):
    pass
