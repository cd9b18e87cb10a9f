"""However it is installed, the package finds its SQL and brings nothing else along."""

import json
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from tests.servers.supervisor import run_directory

ROOT = Path(__file__).resolve().parents[2]
Sql = dict[str, list[list[object]]]

# Sees the installation and, behind it, the dependencies of this environment, but not its own copy.
FIND_SQL = """
import json, site, sys
installation, dependencies = sys.argv[1:]
site.addsitedir(installation)
sys.path.append(dependencies)
import relay, relay.schema_files as files
found = {c: [[m.version, m.name, m.text] for m in files.migrations(c)] for c in ("outbox", "inbox")}
print(json.dumps([relay.__file__, found]))
"""


def run(*argv: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def built() -> Path:
    """Wheels: `wheel/` from the tree, `from_sdist/` from the sdist, `editable/`."""
    directory = run_directory() / "packages"
    with FileLock(f"{directory}.lock"):
        if not directory.exists():
            draft = Path(tempfile.mkdtemp(dir=directory.parent))
            build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
            run(*build, draft / "wheel", "--wheel")
            run(*build, draft / "from_sdist")
            editable = f"from hatchling.build import build_editable as b; b({str(draft / 'editable')!r})"
            run(sys.executable, "-c", editable)
            draft.rename(directory)
    return directory


def wheel(built: Path, kind: str) -> Path:
    [found] = (built / kind).glob("*.whl")
    return found


def sql_found_by(installation: Path) -> tuple[Path, Sql]:
    """Where an installation is imported from, and what its loader finds."""
    dependencies = sysconfig.get_path("purelib")
    output = run(sys.executable, "-I", "-S", "-c", FIND_SQL, installation, dependencies, cwd=installation)
    where, found = json.loads(output)
    return Path(where), found


def install(package: Path, into: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-index", "--target", into, package)
    return into


def sql_in_tree() -> Sql:
    return {
        component: [
            [number, file.stem[5:], file.read_text()]
            for number, file in enumerate(sorted((ROOT / "schema" / component).glob("*.sql")), start=1)
        ]
        for component in ("outbox", "inbox")
    }


@pytest.mark.parametrize("kind", ["wheel", "from_sdist"])
def test_a_wheel_finds_its_sql(built: Path, kind: str, tmp_path: Path) -> None:
    where, found = sql_found_by(install(wheel(built, kind), tmp_path))
    assert where == tmp_path / "relay" / "__init__.py"
    assert found == sql_in_tree()


def test_an_editable_installation_finds_the_sql_of_the_tree(built: Path, tmp_path: Path) -> None:
    where, found = sql_found_by(install(wheel(built, "editable"), tmp_path))
    assert where == ROOT / "relay" / "__init__.py"
    assert found == sql_in_tree()


@pytest.mark.parametrize("kind", ["wheel", "from_sdist"])
def test_a_wheel_has_two_packages_and_nothing_else_at_its_top(built: Path, kind: str) -> None:
    names = zipfile.ZipFile(wheel(built, kind)).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"relay", "publishers"}
    assert {"relay/py.typed", "publishers/py.typed"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or "tests/" in name]


def test_both_wheels_have_the_same_files(built: Path) -> None:
    def contents(kind: str) -> dict[str, int]:
        archive = zipfile.ZipFile(wheel(built, kind))
        return {info.filename: info.CRC for info in archive.infolist() if "RECORD" not in info.filename}

    assert contents("wheel") == contents("from_sdist")
