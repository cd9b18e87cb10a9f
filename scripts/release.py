"""Makes a release: checks, builds, tries what it built, writes the notes. It never uploads and never pushes.

    make release             a rehearsal with what is committed; says what would keep it from being a release
    make release ARGS=--tag  the release: refuses where anything is wrong, ends with a tag in this repository

An sdist and a wheel are built from the commit, not from the working tree. The wheel, and one built from the
sdist, are each installed in a new environment with all extras, in the versions of requirements-dev.txt; there
the command must tell its version, print its SQL, find its publishers and pass `relay demo`. dist/ has it all.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TWINE = "twine==7.0.0"
PUBLISHERS = ("kafka", "memory", "rabbitmq", "stdout", "webhook")


class Wrong(Exception):
    """The release cannot be made; the text says why."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/release.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tag", action="store_true", help="not a rehearsal: refuse what is wrong, then tag the commit"
    )
    for_real = parser.parse_args().tag
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    found = list(
        obstacles(version, changelog, run("git", "status", "--porcelain"), run("git", "tag", "--list"))
    )
    if for_real and found:
        raise Wrong("\n".join(found))
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        wheel, again, sdist = build(Path(scratch))
        for package in (wheel, again):
            say(f"trying {package.relative_to(scratch)}")
            try_out(package, Path(scratch) / f"try-{package.parent.name}", version)
        check_metadata([sdist, wheel], Path(scratch) / "twine")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        files = [Path(shutil.copy(package, DIST)) for package in (sdist, wheel)]
    notes = notes_of(changelog, version) or notes_of(changelog, "Unreleased") or ""
    (DIST / "NOTES.md").write_text(f"# outbox-relay {version}\n\n{notes}\n\n{checksums(files)}")
    say(f"in {DIST}: " + ", ".join(sorted(file.name for file in DIST.iterdir())))
    if for_real:
        run("git", "tag", "--annotate", f"v{version}", "--file", DIST / "NOTES.md", "--cleanup=verbatim")
        say(f"tagged v{version}; by hand: git push origin v{version}; twine upload dist/*.whl dist/*.gz")
    for obstacle in found:
        say(f"a release would be refused: {obstacle}")


def obstacles(version: str, changelog: str, status: str, tags: str) -> Iterator[str]:
    """What keeps this commit from being a release."""
    if status.strip():
        raw = status.strip().splitlines()
        yield f"the working tree is not clean: commit or remove {len(raw)} files, first '{raw[0].strip()}'"
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"the version {version} in pyproject.toml is not like 1.2.3 or 1.2.3rc1"
    if f"v{version}" in tags.split():
        yield f"v{version} is tagged already: raise the version in pyproject.toml"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD': put it under [Unreleased]"
    elif not notes_of(changelog, version):
        yield f"CHANGELOG.md says nothing of {version}"
    elif notes_of(changelog, "Unreleased"):
        yield f"CHANGELOG.md has entries under [Unreleased]: move them to {version}"


def notes_of(changelog: str, version: str) -> str:
    """What the changelog says of a version; nothing where it has none."""
    section = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |^\[[^\]]+\]: |\Z)"
    found = re.search(section, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def build(scratch: Path) -> tuple[Path, Path, Path]:
    """The wheel of the commit, the wheel of its sdist, and the sdist."""
    source = scratch / "source"
    with tarfile.open(fileobj=io.BytesIO(read("git", "archive", "--format=tar", "HEAD"))) as archive:
        archive.extractall(source, filter="data")
    # The same commit makes the same files.
    epoch = {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct").strip()}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    say("building from the commit")
    run(*command, scratch / "wheel", "--wheel", cwd=source, **epoch)
    run(*command, scratch / "sdist", cwd=source, **epoch)
    [wheel], [again] = (list((scratch / kind).glob("*.whl")) for kind in ("wheel", "sdist"))
    if wheel.read_bytes() != again.read_bytes():
        raise Wrong("the wheel of the commit and the wheel of its sdist differ: the sdist lacks something")
    [sdist] = (scratch / "sdist").glob("*.tar.gz")
    return wheel, again, sdist


def try_out(package: Path, home: Path, version: str) -> None:
    """Install the package where nothing else is, and use it from there."""
    bin_ = environment(home)
    pins = home / "constraints.txt"
    pins.write_text(
        "\n".join(
            re.findall(r"^[^\s=]+==.*?(?= \\$)", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)
        )
    )
    run(bin_ / "pip", "install", "--quiet", "--only-binary", ":all:", "-c", pins, f"{package}[all]", cwd=home)
    run(bin_ / "pip", "check", cwd=home)
    expect(run(bin_ / "relay", "--version", cwd=home) == f"outbox-relay {version}\n", "relay --version")
    expect("CREATE TABLE" in run(bin_ / "relay", "sql", cwd=home), "relay sql")
    expect("CREATE ROLE" in run(bin_ / "relay", "sql", "--roles", cwd=home), "relay sql --roles")
    load = f"from relay.plugins import find_publisher\nfor name in {PUBLISHERS}: find_publisher(name)"
    run(bin_ / "python", "-c", load, cwd=home)
    verdict = json.loads(run(bin_ / "relay", "demo", "--seconds", "3", "--json", cwd=home))["verdict"]
    say(f"relay demo: {verdict['delivered']} of {verdict['emitted']} delivered, {verdict['lost']} lost")


def check_metadata(packages: list[Path], home: Path) -> None:
    bin_ = environment(home)
    run(bin_ / "pip", "install", "--quiet", TWINE, cwd=home)
    say(run(bin_ / "twine", "check", "--strict", *packages, cwd=home, NO_COLOR="1").strip())


def environment(home: Path) -> Path:
    venv.create(home, with_pip=True)
    return home / "bin"


def checksums(files: list[Path]) -> str:
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    return f"SHA-256:\n\n```text\n{sums}```\n"


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(f"{what} of the built package does not say what it should")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    return read(*command, cwd=cwd, **variables).decode()


def read(*command: str | Path, cwd: Path = ROOT, **variables: str) -> bytes:
    environ = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, check=False)
    if done.returncode:
        told = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise Wrong(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{told}")
    return done.stdout


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"no release: {wrong}")
