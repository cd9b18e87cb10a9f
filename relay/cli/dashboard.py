"""`relay dashboard`: the operator's pages without relaying."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import Annotated

import typer

from relay.cli.app import App, Config, DatabaseUrl, TableOption, note, opened, settings_from
from relay.errors import MissingExtra, SettingsError


def command(app: App) -> None:
    app.command(help=_DASHBOARD)(dashboard)


_DASHBOARD = """Serve the operator's pages, without relaying.

A relay that runs serves the same pages on its own address, as long as the extra `web` is installed; use this
to look at an outbox from elsewhere. It reads on connections of its own. While no relay runs, its /metrics
show what waits, so that somebody notices.

\b
Who may look, and who may act:
  on a loopback address        everybody on this machine may look
  on any other address         set RELAY_HTTP_TOKEN: the pages ask for it
  to retry, skip, pause …      set RELAY_OPERATOR_TOKEN and sign in with it; without it nothing can be changed
  RELAY_HIDE_PAYLOADS=true     keeps payloads and headers from the pages

\b
Examples:
  relay dashboard
  relay dashboard --http 127.0.0.1:8080
  RELAY_OPERATOR_TOKEN=$(openssl rand -hex 16) relay dashboard
"""


def dashboard(
    http: Annotated[
        str | None, typer.Option(help="where to listen, as host:port [RELAY_HTTP]", show_default=False)
    ] = None,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    import logging
    import signal
    import threading

    from relay import logs
    from relay.http import HttpServer, has_pages
    from relay.web.standin import StandIn

    settings = settings_from(database_url, table, config, http=http)
    if not has_pages():
        raise MissingExtra("relay dashboard", "web")
    if settings.http == "off":
        raise SettingsError("http = off leaves the pages nowhere to be: pass --http 127.0.0.1:9108")
    with opened(settings, "dashboard"):
        pass  # an outbox that is not there is told here, not by an empty page
    logs.configure(logging.WARNING)
    standin = StandIn(settings)
    server = HttpServer(settings, standin.metrics, lambda: None)
    server.start()
    standin.start()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    host = settings.http.rpartition(":")[0]
    note(f"the pages of {settings.table} are on http://{host}:{server.port} until you press Ctrl-C")
    try:
        ended.wait()
    finally:
        server.stop()
        standin.stop()
