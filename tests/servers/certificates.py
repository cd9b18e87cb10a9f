"""Certificates made for one test: an authority of its own, and servers that it vouches for. By openssl."""

import os
import shutil
import ssl
import subprocess
from pathlib import Path

from relay.demo.postgres import ServerError, unprivileged_account

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """`ca` is its certificate; `certificate` and `key` are a server's, for localhost and 127.0.0.1.

    The server's files may be read by servers that do not run as root.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            raise ServerError("openssl is not installed.")
        directory.mkdir(parents=True)
        directory.chmod(0o755)
        self.ca, self._ca_key = directory / "ca.pem", directory / "ca-key.pem"
        self.certificate, self.key = directory / "server.pem", directory / "server-key.pem"
        # A name of its own: two authorities of one name are told apart by their signatures alone.
        subject = f"/CN=authority of {directory.name}"
        _openssl(
            "req", "-x509", *KEY, "-keyout", self._ca_key, "-out", self.ca, "-days", "2", "-subj", subject
        )
        issued_by = ("-CA", self.ca, "-CAkey", self._ca_key, "-addext", NAMES)
        out = ("-keyout", self.key, "-out", self.certificate, "-days", "2", "-subj", "/CN=localhost")
        _openssl("req", "-x509", *KEY, *issued_by, *out, "-addext", "basicConstraints=critical,CA:FALSE")
        self.key.chmod(0o600)
        account = unprivileged_account()
        if account is not None:
            os.chown(self.key, account.pw_uid, account.pw_gid)

    def chain(self) -> Path:
        """The server's key and certificates in one file, as Kafka reads them."""
        path = self.key.with_name("chain.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text() + self.ca.read_text())
        return path

    def context(self) -> ssl.SSLContext:
        """For a server in this process."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def _openssl(*arguments: object) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ServerError(f"openssl failed:\n{done.stderr}")
