"""The files of compose/ are what their tools accept, and keep what they promise: pinned, closed, no secrets.

Nothing here needs a container engine: schemas, parsers and the program itself judge the files.
"""

import configparser
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from pydantic import SecretStr

from relay.cli import make_app
from relay.configuration import load
from relay.durations import seconds
from relay.settings import Settings
from tests.conftest import missing
from tests.servers.kafka import VERSION as TESTED_KAFKA

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "compose"
STACK = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
ONE_SHOT = {"migrate", "prepare"}
KUBERNETES = sorted((COMPOSE / "kubernetes").glob("*.yaml"))
OPERATORS_OWN = {"kustomization.yaml", "monitoring.yaml"}  # kinds that Kubernetes itself does not have
DEFAULTS = Settings(database_url=SecretStr("postgresql://x"))
EXACT = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+(\.\d+)*(-[a-z0-9.]+)*")


def documents(*names: str) -> Iterator[dict[str, Any]]:
    for path in KUBERNETES:
        if (not names and path.name not in OPERATORS_OWN) or path.name in names:
            yield from yaml.safe_load_all(path.read_text())


def kinds(kind: str) -> list[dict[str, Any]]:
    return [document for document in documents() if document["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    found = kinds("Deployment") + kinds("Job")
    return {document["metadata"]["name"]: document["spec"]["template"] for document in found}


def commands() -> set[str]:
    return {str(command.name or command.callback.__name__) for command in make_app().registered_commands}  # type: ignore[union-attr]


# compose.yaml


def test_the_compose_file_is_what_the_specification_allows() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
         str(COMPOSE / "compose.yaml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_an_exact_version(name: str) -> None:
    assert EXACT.fullmatch(SERVICES[name]["image"])


def test_the_servers_are_those_of_the_tests() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{TESTED_KAFKA}"
    assert SERVICES["postgres"]["image"].startswith("postgres:18.")


def test_the_images_carry_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {service["image"] for service in OWN.values()}
    images |= {container["image"] for pod in pods().values() for container in pod["spec"]["containers"]}
    assert {image.rpartition(":")[2] for image in images} == {version}
    (kustomization,) = documents("kustomization.yaml")
    assert [image["newTag"] for image in kustomization["images"]] == [version]


@pytest.mark.parametrize("name", OWN)
def test_the_relays_and_the_example_are_locked_down(name: str) -> None:
    service = OWN[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_what_others_wait_for_says_when_it_is_there() -> None:
    consumers = {"billing", "saga"}  # nobody asks them anything
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) == (name not in ONE_SHOT | consumers), name
        waits = service.get("depends_on", {})
        for other, how in waits.items() if isinstance(waits, dict) else ():
            expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how["condition"] == expected


def test_two_relays_run_and_have_the_time_to_drain() -> None:
    relay = SERVICES["relay"]
    assert relay["deploy"]["replicas"] == 2
    assert seconds(relay["stop_grace_period"]) > DEFAULTS.grace_seconds


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in STACK["volumes"]


def test_no_secret_is_written_down() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASS|TOKEN|SECRET|DATABASE_URL|RABBITMQ__URL", variable):
                assert variable.endswith("_FILE"), f"{name}: {variable}"
                assert "/run/secrets/" in value
        assert not re.search(r"://[^/\s]*:[^/\s]*@", yaml.safe_dump(service)), name


def test_every_secret_that_is_used_is_mounted_and_made(tmp_path: Path) -> None:
    subprocess.run(["sh", str(COMPOSE / "secrets.sh"), str(tmp_path / "secrets")], check=True)
    directory = tmp_path / "secrets"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    made = {path.name for path in directory.iterdir() if path.stat().st_mode & stat.S_IROTH}
    for secret in STACK["secrets"].values():
        assert secret["file"].removeprefix("./secrets/") in made
    for service in SERVICES.values():
        mounted = {
            secret if isinstance(secret, str) else secret["source"] for secret in service.get("secrets", [])
        }
        assert mounted <= STACK["secrets"].keys()
        read = re.findall(r"/run/secrets/(\w+)", yaml.safe_dump(service.get("environment", {})))
        # The relays' URL of RabbitMQ is the same for all who share the environment.
        assert set(read) - {"rabbitmq_url"} <= mounted
    assert "compose/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_secrets_are_made_once(tmp_path: Path) -> None:
    def made() -> dict[str, str]:
        subprocess.run(["sh", str(COMPOSE / "secrets.sh"), str(tmp_path)], check=True)
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    first = made()
    assert first == made()
    assert len(set(first.values())) == len(first)
    assert first["postgres_password"].strip() in first["database_url"]


def test_what_the_readme_says_is_there() -> None:
    text = (COMPOSE / "README.md").read_text()
    named = re.findall(r"(?:exec|stop|start|--scale) (\w+)", text)
    assert named
    assert set(named) <= SERVICES.keys()
    published = {port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])}
    assert set(re.findall(r"localhost:(\d+)", text)) <= published
    made = (COMPOSE / "secrets.sh").read_text()
    assert all(f"make {secret} " in made for secret in re.findall(r"cat compose/secrets/(\w+)", text))


# The image


class Stage(NamedTuple):
    base: str
    name: str
    steps: list[tuple[str, str]]

    def of(self, word: str) -> list[str]:
        return [rest for instruction, rest in self.steps if instruction == word]


def stages() -> list[Stage]:
    text = re.sub(r"^#.*\n", "", (COMPOSE / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: list[Stage] = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.split()
            found.append(Stage(base, name, []))
        else:
            found[-1].steps.append((instruction, rest))
    return found


def test_the_image_is_built_in_stages_and_runs_as_nobody_in_particular() -> None:
    built = {stage.name: stage for stage in stages()}
    assert set(built) == {"build", "build-example", "relay", "example"}
    for stage in built.values():
        assert stage.base in built or re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", stage.base)
        assert not stage.of("ADD")
    assert built["build"].base == built["relay"].base, "an environment is moved between equals only"
    assert built["relay"].of("USER") == ["10001:10001"]
    assert not built["example"].of("USER"), "it stays the relay's"
    assert built["relay"].of("STOPSIGNAL") == ["SIGTERM"]
    assert built["relay"].of("ENTRYPOINT") == ['["entrypoint"]']
    assert built["relay"].of("CMD") == ['["relay", "run"]']
    targets = {service["build"]["target"] for service in OWN.values()}
    assert targets == {"relay", "example"}


def test_nothing_is_installed_that_is_not_pinned() -> None:
    for stage in stages():
        for step in stage.of("RUN"):
            for part in step.split("&&"):
                if " install " in part:
                    assert "--require-hashes" in part or ("--no-deps" in part and "--no-index" in part)


def test_what_the_image_copies_exists() -> None:
    for stage in stages():
        for step in stage.of("COPY"):
            words = [word for word in shlex.split(step) if not word.startswith("--chmod")]
            if not words[0].startswith("--from"):
                assert all((ROOT / source).exists() for source in words[:-1]), step


def test_what_the_image_copies_is_all_that_is_sent_to_be_built() -> None:
    lines = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source.rstrip("/")
        for stage in stages()
        for step in stage.of("COPY")
        if not step.startswith("--from")
        for source in [word for word in shlex.split(step) if not word.startswith("--")][:-1]
    }
    assert {source.removesuffix("/entrypoint") for source in copied} == sent


def test_the_wheel_builds_from_what_the_image_copies(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (build,) = [stage for stage in stages() if stage.name == "build"]
    for step in build.of("COPY"):
        *paths, target = shlex.split(step)
        for path in paths:
            if (ROOT / path).is_dir():
                shutil.copytree(ROOT / path, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / path, source / target)
    flags = ["--no-deps", "--no-build-isolation", "--no-index"]
    (wheel_step,) = [step for step in build.of("RUN") if "pip wheel" in step]
    assert all(flag in wheel_step for flag in flags)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", str(tmp_path), "."],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"relay/cli/run.py", "publishers/kafka.py", "relay/schema/outbox/0001_outbox.sql"} <= set(names)


@pytest.mark.parametrize("name", ["relay", "example", "build"])
def test_the_image_has_the_versions_that_the_tests_ran_with(name: str) -> None:
    pin = re.compile(r"^([a-z0-9-]+)==([^ ;]+)", re.MULTILINE)
    tested = dict(pin.findall((ROOT / "requirements-dev.txt").read_text()))
    pinned = dict(pin.findall((COMPOSE / f"requirements/{name}.txt").read_text()))
    assert pinned
    assert {package: tested.get(package) for package in pinned} == pinned


def test_the_image_has_all_that_the_relay_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [project["dependencies"], *(extras[name] for name in ("kafka", "rabbitmq", "webhook", "web"))]
    names = {Requirement(text).name.lower() for group in wanted for text in group}
    pinned = set(
        re.findall(r"^([a-z0-9-]+)==", (COMPOSE / "requirements/relay.txt").read_text(), re.MULTILINE)
    )
    assert names - pinned == set()


def entrypoint(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", str(COMPOSE / "image/entrypoint"), *command],
        env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_secret_is_read_from_its_file_as_it_is(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("postgresql://u:p$(id)`x`\"'\\@h/d\n")
    seen = entrypoint("env", RELAY_DATABASE_URL_FILE=str(secret), RELAY_RABBITMQ__URL_FILE="")
    assert f"RELAY_DATABASE_URL={secret.read_text()}" in seen.stdout
    assert "_FILE" not in seen.stdout


def test_a_secret_that_cannot_be_read_is_told_in_a_sentence() -> None:
    told = entrypoint("true", RELAY_DATABASE_URL_FILE="/nowhere/at/all")
    assert told.returncode == 2
    assert told.stderr.startswith("error: RELAY_DATABASE_URL_FILE = /nowhere/at/all cannot be read")


def test_the_entrypoint_knows_every_secret_of_the_settings() -> None:
    text = (COMPOSE / "image/entrypoint").read_text()
    secrets = {
        "RELAY_" + "__".join(path).upper()
        for path in _secret_fields(Settings)
        if path != ("publisher_options",)
    }
    assert secrets <= set(re.findall(r"RELAY_\w+", text))


def _secret_fields(model: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from _secret_fields(field.annotation, (*above, name))
        elif "SecretStr" in str(field.annotation):
            yield (*above, name)


# Prometheus


def test_prometheus_takes_its_configuration() -> None:
    promtool = shutil.which("promtool") or missing("promtool is not installed: make servers.")
    checked = subprocess.run(
        [promtool, "check", "config", str(COMPOSE / "prometheus/prometheus.yml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_jobs_that_alerts_name_are_scraped_where_the_services_listen() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    jobs = {job["job_name"]: job for job in scraped}
    named = set(re.findall(r'job="([\w-]+)"', (COMPOSE / "prometheus/alerts.yml").read_text()))
    assert named <= jobs.keys()
    (discovery,) = jobs["outbox-relay"]["dns_sd_configs"]
    assert discovery["names"] == ["relay"]
    (dashboard,) = jobs["outbox-dashboard"]["static_configs"]
    assert dashboard["targets"] == [f"dashboard:{discovery['port']}"]
    (image,) = [stage for stage in stages() if stage.name == "relay"]
    assert image.of("EXPOSE") == [str(discovery["port"])]
    assert f"RELAY_HTTP=0.0.0.0:{discovery['port']}" in image.of("ENV")[0]
    monitored = [
        document["podMetricsEndpoints"][0]["relabelings"][0]["replacement"]
        for document in (document["spec"] for document in documents("monitoring.yaml"))
    ]
    assert set(monitored) == jobs.keys()


# Kubernetes


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_takes_the_manifests(version: str) -> None:
    found = list(documents())
    assert len(found) > 5
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_everything_is_applied_or_an_example() -> None:
    (kustomization,) = documents("kustomization.yaml")
    others = {"kustomization.yaml", "secret.example.yaml", "monitoring.yaml"}
    assert {*kustomization["resources"]} == {path.name for path in KUBERNETES} - others


@pytest.mark.parametrize("name", pods())
def test_a_pod_is_locked_down_and_bounded(name: str) -> None:
    pod = pods()[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    assert container["command"][:2] == ["entrypoint", "relay"]
    assert container["command"][2] in commands()


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in kinds("Secret")}
    configs = {config["metadata"]["name"]: config["data"] for config in kinds("ConfigMap")}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= configs[source["configMapRef"]["name"]]
    for variable in container["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        found[variable["name"]] = secrets[reference["name"]][reference["key"]]
    return found


@pytest.mark.parametrize("name", pods())
def test_a_pod_s_environment_is_made_of_settings(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (container,) = pods()[name]["spec"]["containers"]
    monkeypatch.chdir(tmp_path)
    for variable, value in environment_of(container).items():
        monkeypatch.setenv(variable, value)
    assert "sslmode=verify-full" in load().database_url.get_secret_value()


def test_a_pod_has_the_time_to_drain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pod = pods()["outbox-relay"]["spec"]
    (container,) = pod["containers"]
    monkeypatch.chdir(tmp_path)
    for variable, value in environment_of(container).items():
        monkeypatch.setenv(variable, value)
    assert pod["terminationGracePeriodSeconds"] >= load().grace_seconds + 10
    assert "lifecycle" not in container


def test_a_relay_is_alive_without_the_database_and_ready_with_it() -> None:
    (container,) = pods()["outbox-relay"]["spec"]["containers"]
    (port,) = container["ports"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert [paths[kind]["path"] for kind in paths] == ["/livez", "/livez", "/readyz"]
    (config,) = kinds("ConfigMap")
    assert config["data"]["RELAY_HTTP"].endswith(f":{port['containerPort']}")


def test_selectors_find_their_pods() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods().items()}
    for deployment in kinds("Deployment"):
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert [name for name in labels if labels[name] == wanted] == [deployment["metadata"]["name"]]
    (budget,) = kinds("PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == labels["outbox-relay"]
    (service,) = kinds("Service")
    assert service["spec"]["selector"] == labels["outbox-dashboard"]
    for monitor in documents("monitoring.yaml"):
        assert monitor["spec"]["selector"]["matchLabels"] == labels[monitor["metadata"]["name"]]


# systemd


def unit() -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(COMPOSE / "systemd/outbox-relay@.service")
    return {section: dict(parser[section]) for section in parser.sections()}


def test_a_unit_drains_and_does_not_restart_on_wrong_settings() -> None:
    service = unit()["Service"]
    assert shlex.split(service["ExecStart"])[1] in commands()
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) >= DEFAULTS.grace_seconds + 10
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze") or missing("systemd-analyze is not installed.")
    program = unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / "outbox-relay@.service"
    copy.write_text(
        (COMPOSE / "systemd/outbox-relay@.service").read_text().replace(program, sys.executable, 1)
    )
    checked = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
    told = [line for line in checked.stderr.splitlines() if str(copy) in line or copy.stem in line]
    assert told == []
