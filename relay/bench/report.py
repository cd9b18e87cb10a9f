"""A bench's result for people: columns and small plots."""

from collections.abc import Iterator, Sequence
from typing import Any

from relay.bench.plots import bar, sparkline

WIDTH = 24


def lines(result: dict[str, Any], *, ascii_only: bool = False) -> Iterator[str]:
    yield from _head(result)
    figures = [_named(figure) for figure in result["figures"]]
    yield from _drains(figures, ascii_only)
    yield from _costs(figures, result["steady"])
    if result["client"]:
        yield from _client(result["client"], ascii_only)
    if result["steady"]:
        yield from _steady(result["steady"], ascii_only)
    yield ""
    for verdict in result["checks"]:
        yield _checked(verdict)


def _named(figure: dict[str, Any]) -> dict[str, Any]:
    """What is tried stands in the head, not in every line."""
    return figure if figure["ratio_of_plain"] is None else figure | {"name": "  under the trial above"}


def _head(result: dict[str, Any]) -> Iterator[str]:
    machine, postgresql = result["machine"], result["machine"]["postgresql"]
    yield (
        f"{machine['cores']} cores, PostgreSQL {postgresql['server_version']} (fsync {postgresql['fsync']}),"
        f" publisher {result['publisher']}, completion {result['completion']},"
        f" {result['plan']['payload_bytes']}-byte payloads, {result['plan']['keys']:,} keys"
    )
    tried = [f["name"].partition(": ")[2] for f in result["figures"] if f["ratio_of_plain"] is not None]
    if tried:
        yield f"trial: {tried[0]}"
    yield ""


def _drains(figures: Sequence[dict[str, Any]], ascii_only: bool) -> Iterator[str]:
    top = max(figure["events_per_second"] for figure in figures)
    rows: list[Sequence[str]] = [
        ("drain", "events/s", "", "of raw loop", "of bare client", "of plain", "over time")
    ]
    rows += [
        (
            figure["name"],
            f"{figure['events_per_second']:,}",
            bar(figure["events_per_second"], top, WIDTH, ascii_only=ascii_only),
            _shown(figure["ratio_of_raw_loop"]),
            _shown(figure["ratio_of_client"]),
            _shown(figure["ratio_of_plain"]),
            sparkline(figure["course"], ascii_only=ascii_only),
        )
        for figure in figures
    ]
    yield from _columns(rows)
    yield ""


def _costs(figures: Sequence[dict[str, Any]], steady: dict[str, Any] | None) -> Iterator[str]:
    names = {
        "relay µs": "relay_cpu_us_per_event",
        "database µs": "database_cpu_us_per_event",
        "broker µs": "broker_cpu_us_per_event",
        "WAL bytes": "wal_bytes_per_event",
        "dead tuples": "dead_tuples_per_event",
        "HOT": "hot_update_share",
        "peak RSS MiB": "peak_rss_mib",
        "CPU of others": "other_processes_cpu_share",
    }
    rows: list[Sequence[str]] = [("per event", *names)]
    parts = [*figures, {"name": "steady load (with its writer)", **steady}] if steady else figures
    rows += [(figure["name"], *(_shown(figure[name]) for name in names.values())) for figure in parts]
    yield from _columns(rows)


def _client(client: dict[str, Any], ascii_only: bool) -> Iterator[str]:
    yield ""
    named = {
        "publisher alone": ("publisher_events_per_second", None),
        "bare client, same batches": ("client_events_per_second", "ratio"),
        "bare client, never waiting": ("client_free_running_events_per_second", "ratio_of_free_running"),
    }
    top = max(client[name] for name, _ in named.values())
    rows: list[Sequence[str]] = [("no database", "events/s", "", "publisher's share")]
    for title, (name, share) in named.items():
        picture = bar(client[name], top, WIDTH, ascii_only=ascii_only)
        rows.append((title, f"{client[name]:,}", picture, _shown(client[share]) if share else ""))
    yield from _columns(rows)


def _steady(steady: dict[str, Any], ascii_only: bool) -> Iterator[str]:
    yield ""
    yield f"steady load: {steady['events']:,} events, {steady['events_per_second']}/s"
    rows: list[Sequence[str]] = [("milliseconds", "p50", "p99", "p99.9", "max")]
    for title, name in (
        ("commit acknowledged to writer → confirmed", "commit_to_confirm_ms"),
        ("INSERT sent by writer → confirmed", "insert_to_confirm_ms"),
    ):
        times = steady[name]
        rows.append((title, *(_shown(times and times[share]) for share in ("p50", "p99", "p99_9", "max"))))
    yield from _columns(rows)
    if "ratio_of_client" in steady:
        yield f"  p50 is {steady['ratio_of_client']} x the bare client's for one message"
    if behind := steady.get("backlog_behind_it"):
        yield (
            f"  then, with the transaction still open, a backlog of {behind['events']:,}:"
            f" {behind['events_per_second']:,} events/s, {behind['ratio_of_plain']} of plain"
        )
    yield from _over_time(steady["over_time"], ascii_only)
    top = max((count for _, count in steady["histogram_ms"]), default=0)
    for bound, count in steady["histogram_ms"]:
        yield f"  ≤ {bound:8g} ms  {count:7,}  {bar(count, top, WIDTH, ascii_only=ascii_only)}".rstrip()


def _over_time(slices: Sequence[dict[str, Any]], ascii_only: bool) -> Iterator[str]:
    times = [each["commit_to_confirm_ms"] for each in slices if each["commit_to_confirm_ms"]]
    series = {
        "p50 over time, ms": [each["p50"] for each in times],
        "p99 over time, ms": [each["p99"] for each in times],
        "table, MiB": [each["table_bytes"] / 2**20 for each in slices],
        "indexes, MiB": [each["index_bytes"] / 2**20 for each in slices],
    }
    rows: list[Sequence[str]] = [
        (f"  {name}", sparkline(values, ascii_only=ascii_only), f"{min(values):.1f} to {max(values):.1f}")
        for name, values in series.items()
        if values
    ]
    if rows:
        yield from _columns(rows)


def _checked(verdict: dict[str, Any]) -> str:
    said = f"{verdict['lost']} lost, {verdict['inverted']} inverted, {verdict['duplicates']} duplicates"
    if verdict["unknown"]:
        said += f", {verdict['unknown']} that nobody committed"
    mark = "ok" if verdict["clean"] else "FAILED"
    return (
        f"{mark}: {verdict['stage']}: {verdict['found']:,} events read back from {verdict['source']}: {said}"
    )


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(cell.rjust(width) if cell[:1].isdigit() or cell == "-" else cell.ljust(width))
        yield "  ".join(cells).rstrip()
