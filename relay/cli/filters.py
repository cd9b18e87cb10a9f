"""The options by which commands choose events: the same words and the same help everywhere."""

from typing import Annotated

import typer

from relay.errors import SettingsError

Ids = Annotated[list[str] | None, typer.Argument(help="event_ids", show_default=False, metavar="[EVENT_ID]…")]
Key = Annotated[str | None, typer.Option(help="only of this key", show_default=False)]
Type = Annotated[str | None, typer.Option("--type", help="only of this event type", show_default=False)]
Error = Annotated[
    str | None, typer.Option(help="only where last_error contains this text", show_default=False)
]
Since = Annotated[
    str | None,
    typer.Option(help="only created since: '2h', '7 days', or 2026-07-01T12:00", show_default=False),
]


def require_choice(*, filtered: bool, everything: bool) -> None:
    """Whoever acts says which events are meant: by ids or filters, or by --all."""
    if filtered == everything:
        wrong = "--all and filters exclude each other" if everything else "which events?"
        raise SettingsError(f"{wrong} Name event ids or filters, or --all alone")
