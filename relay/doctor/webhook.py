"""Whether the hosts that webhooks go to are found, public, and reached by TLS. No request is made.

Only hosts are named: a URL may contain secrets.
"""

import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import closing

import httpx

from publishers.addresses import Address, AddressRefused, resolve
from publishers.webhook_target import Secrets, Target, target_of
from relay.doctor.backlog import Route, destinations
from relay.doctor.finding import Finding, in_time, or_fine, out_of_time
from relay.settings import Settings

FAMILY = "webhook"
SECONDS = 4.0
MOST_HOSTS = 20


def check(settings: Settings, routes: list[Route]) -> list[Finding]:
    # A template's fields stand in the path as a rule: its host is known without an event.
    names = dict.fromkeys([settings.destination, *destinations(settings.destination, routes)])
    targets = {target.host: target for name in names if "{" not in (target := target_of(name)).host}
    found: list[Finding] = []
    skipped = list(targets)[MOST_HOSTS:]
    for host in in_time(list(targets)[:MOST_HOSTS], skipped):
        found += _target(settings, targets[host])
    found += out_of_time(FAMILY, skipped)
    secrets = Secrets(settings.webhook.secret)
    unsigned = [
        host for host, target in targets.items() if target.url is not None and secrets.of(target) is None
    ]
    if unsigned:
        what = f"what is sent to {', '.join(unsigned)} is not signed"
        why = "the receiver cannot tell it from what anybody else sends"
        found.append(
            Finding(FAMILY, "warning", what, why, "export RELAY_WEBHOOK__SECRET=$(openssl rand -hex 32)")
        )
    return or_fine(found, FAMILY, f"hosts: {', '.join(targets)}")


def _target(settings: Settings, target: Target) -> Iterable[Finding]:
    if target.url is None:
        what = f"the destination {target.host} is no http or https URL"
        yield Finding(FAMILY, "error", what, "its events become dead letters: correct what writes it")
        return
    secured = target.url.scheme == b"https"
    if not secured:
        what = f"what is sent to {target.host} is not encrypted (http)"
        why = "anybody on the way can read the events, and change what is not signed"
        yield Finding(FAMILY, "warning", what, why, f"export RELAY_DESTINATION=https://{target.name}/…")
    port = target.url.port or (443 if secured else 80)
    try:
        addresses = _resolved(target.name, port, settings.webhook.allow_private)
        _reach(addresses, target.name if secured else None)
    except AddressRefused as refused:
        what = f"{target.host} is at {refused}, which is no public address"
        why = (
            "the relay posts nothing to private addresses unless told: a URL in a row could reach what"
            " it should not"
        )
        yield Finding(FAMILY, "error", what, why, "export RELAY_WEBHOOK__ALLOW_PRIVATE=true")
    except ssl.SSLError as error:
        said = getattr(error, "verify_message", "") or error.reason or "the connection ended"
        why = "nothing is posted to a server that cannot prove who it is"
        yield Finding(FAMILY, "error", f"the certificate of {target.host} is not trusted: {said}", why)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error) or "it is no name"
        what = (
            f"{target.host} cannot be {'resolved' if isinstance(error, socket.gaierror) else 'reached'}:"
            f" {said}"
        )
        yield Finding(FAMILY, "error", what, "its events wait until it can be; they lose nothing by it")


def _resolved(host: str, port: int, allow_private: bool) -> list[Address]:
    """Addresses by a resolver that is not waited for longer than everything else."""
    found: list[Address] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            found.extend(resolve(host, port, allow_private, socket.getaddrinfo))
        except (AddressRefused, OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=ask, name="resolver", daemon=True)
    thread.start()
    thread.join(SECONDS)
    if failed:
        raise failed[0]
    if not found:
        raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {SECONDS:g} s")
    return found


def _reach(addresses: list[Address], name: str | None) -> None:
    """Connect, and with a name also by TLS; then hang up. Raises why that failed."""
    failure: OSError | None = None
    for family, sockaddr in addresses[:2]:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as plain:
            plain.settimeout(SECONDS)
            try:
                plain.connect(sockaddr)
            except OSError as error:
                failure = error
                continue
            if name is not None:
                httpx.create_ssl_context().wrap_socket(plain, server_hostname=name).close()
            return
    if failure is not None:
        raise failure
