"""The compose file matches the configurations with which it starts the Collector."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.otel_config.collector import COMBINATIONS, ROOT, config, ports, variables

FOLDER = ROOT / "compose"
SECRETS = ROOT / "secrets.sh"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
KINDS = {
    "image", "restart", "user", "read_only", "cap_drop", "security_opt", "stop_grace_period",
    "depends_on", "environment", "volumes", "ports", "ulimits", "healthcheck", "network_mode",
    "command", "mem_limit",
}  # fmt: skip


def started_with(arguments: list[str]) -> str:
    """Return the combination of files that a Collector's arguments name."""
    files = tuple(
        each.removeprefix("--config=/etc/ltrain/").removesuffix(".yaml") for each in arguments
    )
    (name,) = (name for name, parts in COMBINATIONS.items() if parts == files)
    return name


def needed(name: str) -> set[str]:
    """Return the variables without a default that a combination of files reads."""
    texts = [(ROOT / "collector" / f"{part}.yaml").read_text() for part in COMBINATIONS[name]]
    return {each for text in texts for each, default in variables(text).items() if default is None}


def test_services_have_known_keys_and_pinned_images() -> None:
    for name, service in SERVICES.items():
        assert service.keys() <= KINDS, name
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+(\.\d+)?", service["image"]), name


def test_volumes_are_declared_and_files_are_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{[^}]*\}", "$SECRETS", volume).split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).exists(), f"{name}: {volume}"
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"], f"{name}: {volume}"


def test_every_secret_is_required_and_none_has_a_default(secrets: Path) -> None:
    referenced = re.findall(r"(?<!\$)\$\{(\w+)(:\?[^}]+)?\}", TEXT)
    assert referenced and all(why for _, why in referenced)
    text = (secrets / "passwords.env").read_text()
    made = dict(line.split("=") for line in text.splitlines())
    assert made.keys() == {name for name, _ in referenced}
    assert len(set(made.values())) == len(made) and all(len(each) >= 40 for each in made.values())
    mounted = made["LTRAIN_SECRETS"]
    assert mounted == str(secrets / "gateway")
    files = {path.name for path in Path(mounted).iterdir()}
    read_by = set(re.findall(r"/run/secrets/([\w.-]+)", TEXT))
    assert read_by <= files == {*read_by, "ca.pem"}
    assert (Path(mounted) / "agent-keys").read_text().split() == [made["LTRAIN_AGENT_KEY"]]


def test_secrets_are_their_owner_s_alone_and_the_certificate_holds(secrets: Path) -> None:
    assert all(not path.stat().st_mode & 0o077 for path in [secrets, *secrets.rglob("*")])
    names = "gateway", "gateway.ltrain.svc", "gateway-nodes.ltrain.svc", "example.org"
    for name in names:
        openssl("verify", "-CAfile", "ca.pem", "-verify_hostname", name, "gateway.pem", at=secrets)
    with pytest.raises(subprocess.CalledProcessError):
        openssl("verify", "-CAfile", "ca.pem", "-verify_hostname", "x", "gateway.pem", at=secrets)
    again = subprocess.run([SECRETS, secrets], capture_output=True, text=True)
    assert again.returncode == 1 and "already exists" in again.stderr


def openssl(*arguments: str, at: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=at / "gateway", check=True, capture_output=True)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets") / "made"
    subprocess.run([SECRETS, folder, "example.org"], check=True, capture_output=True)
    return folder


def test_collectors_get_the_variables_that_they_read() -> None:
    for service in ("gateway", "agent"):
        name = started_with(SERVICES[service]["command"])
        available = SERVICES[service]["environment"].keys()
        assert needed(name) <= available, service
        known = {each for part in COMBINATIONS[name] for each in variables(read(part))}
        assert available <= known | {"GOMEMLIMIT"}, service


def read(part: str) -> str:
    return (ROOT / "collector" / f"{part}.yaml").read_text()


def test_queues_lie_on_volumes_that_somebody_gave_to_the_collectors_user() -> None:
    available = {each.split(":")[0] for each in SERVICES["queues"]["volumes"]}
    assert SERVICES["queues"]["command"][:2] == ["chown", SERVICES["agent"]["user"]]
    for service in ("gateway", "agent"):
        extensions = config(started_with(SERVICES[service]["command"]))["extensions"]
        folder = extensions["file_storage/queue"]["directory"].partition(":-")[2].rstrip("}")
        held = [each.split(":")[0] for each in SERVICES[service]["volumes"] if f":{folder}" in each]
        assert len(held) == 1 and held[0] in available


def test_open_ports_are_those_of_the_receivers() -> None:
    for service, doors in (("agent", "otlp"), ("gateway", "otlp/trusted")):
        name = started_with(SERVICES[service]["command"])
        wanted = {port for door, port in ports(config(name)).items() if door.startswith(doors)}
        opened = {int(each.rpartition(":")[2]) for each in SERVICES[service]["ports"]}
        assert opened == wanted | {13133}, service


def test_what_has_no_key_or_tls_is_open_on_loopback_only() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:") or (
                name == "gateway" and port[:4] in ("4327", "4328")
            )


def test_the_servers_know_the_passwords_of_their_users() -> None:
    users = (ROOT / "clickhouse" / "users.xml").read_text()
    available = SERVICES["clickhouse"]["environment"].keys()
    assert set(re.findall(r'from_env="(\w+)"', users)) <= available
    provisioned = (ROOT / "grafana" / "datasource.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", provisioned)) <= SERVICES["grafana"]["environment"].keys()


def test_who_waits_is_told_when_the_other_is_ready() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            healthy = how["condition"] == "service_healthy"
            assert healthy == ("healthcheck" in SERVICES[other])


def test_memory_limits_of_a_collector_fit_into_each_other() -> None:
    for service, limit in (("gateway", 2048), ("agent", 1024)):
        inner = config(started_with(SERVICES[service]["command"]))["processors"]["memory_limiter"]
        soft = int(SERVICES[service]["environment"]["GOMEMLIMIT"].removesuffix("MiB"))
        assert SERVICES[service]["mem_limit"] == f"{limit // 1024}g"
        assert inner["limit_mib"] < soft < limit
