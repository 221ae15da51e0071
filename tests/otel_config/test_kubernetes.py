"""The Kubernetes manifests: all references resolve, and the configurations fit."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.otel_config.collector import COMBINATIONS, ROOT, config, ports, variables
from tests.otel_config.test_compose import SERVICES, needed, read, started_with

DOCS = ROOT.parent / "docs" / "production.md"
KUSTOMIZATION = yaml.safe_load((ROOT / "kustomization.yaml").read_text())
API = {
    "Namespace": "v1",
    "Service": "v1",
    "PersistentVolumeClaim": "v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "ClickHouseInstallation": "clickhouse.altinity.com/v1",
    "ClickHouseKeeperInstallation": "clickhouse-keeper.altinity.com/v1",
}
SECRETS = {
    "ltrain-passwords": {
        "CLICKHOUSE_ADMIN_PASSWORD",
        "LTRAIN_EXPORTER_PASSWORD",
        "LTRAIN_READER_PASSWORD",
        "LTRAIN_WRITER_PASSWORD",
        "LTRAIN_MIGRATOR_PASSWORD",
        "GRAFANA_ADMIN_PASSWORD",
    },
    "ltrain-gateway-tls": {"tls.crt", "tls.key"},
    "ltrain-gateway-keys": {"agents", "trusted"},
    "ltrain-agent": {"key", "ca.crt"},
}
"""The secrets that the docs page creates, and their keys."""


def documents(*names: str) -> list[dict[str, Any]]:
    return [each for name in names for each in yaml.safe_load_all((ROOT / name).read_text())]


APPLIED = documents(*KUSTOMIZATION["resources"])
WORKING = ("StatefulSet", "DaemonSet", "Deployment")
WORKLOADS = [each for each in APPLIED if each["kind"] in WORKING]
MAPS = {
    each["name"]: {name.rpartition("/")[2]: ROOT / name for name in each["files"]}
    for each in KUSTOMIZATION["configMapGenerator"]
}
WORKLOAD = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each["metadata"]["name"])


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod(workload).get("initContainers", ())
    yield from pod(workload)["containers"]


def labels(workload: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def fits(selector: dict[str, str], workload: dict[str, Any]) -> bool:
    return bool(selector) and selector.items() <= labels(workload).items()


def test_every_manifest_is_applied_or_excluded() -> None:
    there = {f"kubernetes/{path.name}" for path in (ROOT / "kubernetes").glob("*.yaml")}
    assert there - set(KUSTOMIZATION["resources"]) == {"kubernetes/clickhouse-cluster.yaml"}
    assert all(path.exists() for files in MAPS.values() for path in files.values())
    boards = {path.name for path in (ROOT / "grafana" / "dashboards").glob("*.json")}
    assert MAPS["grafana-dashboards"].keys() == boards


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl kustomize is not here")
def test_kustomize_builds_it_and_leaves_nothing_out() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT)], capture_output=True, text=True, check=True
    )
    made = list(yaml.safe_load_all(done.stdout))
    names = {
        (each["kind"], re.sub(r"-[0-9a-z]{10}$", "", each["metadata"]["name"])) for each in made
    }
    wanted = {(each["kind"], each["metadata"]["name"]) for each in APPLIED}
    assert names == wanted | {("ConfigMap", name) for name in MAPS}
    hashed = {each["metadata"]["name"] for each in made if each["kind"] == "ConfigMap"}
    volumes = [v for each in made if each["kind"] in WORKING for v in pod(each).get("volumes", ())]
    assert {v["configMap"]["name"] for v in volumes if "configMap" in v} == hashed


def test_the_page_makes_the_secrets_that_are_referred_to(tmp_path: Path) -> None:
    page = DOCS.read_text().replace("\\\n", " ")
    mounted_secrets = {
        name: set(re.findall(r"--from-(?:file|literal)=([\w.]+)=", rest))
        | ({"tls.crt", "tls.key"} if kind == "tls" else set())
        for kind, name, rest in re.findall(r"create secret (\w+) ([\w-]+)(.*)", page)
    }
    assert (
        mounted_secrets.pop("ltrain-passwords") == set()
    )  # of a file, whose names the next line gives
    subprocess.run([ROOT / "secrets.sh", tmp_path / "s"], check=True, capture_output=True)
    made = re.findall(r"^(\w+)=", (tmp_path / "s" / "passwords.env").read_text(), re.MULTILINE)
    assert SECRETS["ltrain-passwords"] <= set(made)
    assert mounted_secrets == {
        name: keys for name, keys in SECRETS.items() if name != "ltrain-passwords"
    }
    files = re.findall(r"secrets/(gateway/[\w.-]+)", page)
    assert files and all((tmp_path / "s" / each).exists() for each in files)


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(
        r"`((?:collector|clickhouse|compose|grafana|kubernetes)/[\w./-]*|[\w-]+\.sh)`",
        DOCS.read_text(),
    )
    assert len(named) > 10
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_kinds_are_of_their_api_and_names_are_taken_once() -> None:
    for each in [*APPLIED, *documents("kubernetes/clickhouse-cluster.yaml")]:
        assert each["apiVersion"] == API[each["kind"]]
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", each["metadata"]["name"])
    taken = [(each["kind"], each["metadata"]["name"]) for each in APPLIED]
    assert len(taken) == len(set(taken))
    namespaces = [name for kind, name in taken if kind == "Namespace"]
    assert namespaces == [KUSTOMIZATION["namespace"]]


@WORKLOAD
def test_a_workload_selects_its_own_pods(workload: dict[str, Any]) -> None:
    assert fits(workload["spec"]["selector"]["matchLabels"], workload)
    if workload["kind"] == "StatefulSet":
        served = {
            each["metadata"]["name"]: each["spec"]["selector"]
            for each in APPLIED
            if each["kind"] == "Service"
        }
        assert fits(served[workload["spec"]["serviceName"]], workload)


def test_services_budgets_and_policies_select_pods_and_ports_that_are_there() -> None:
    for each in APPLIED:
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            chosen = [one for one in WORKLOADS if fits(spec["selector"], one)]
            named = {
                port["name"]
                for one in chosen
                for c in containers(one)
                for port in c.get("ports", ())
            }
            assert {port["targetPort"] for port in spec["ports"]} <= named, each["metadata"]
        if each["kind"] == "PodDisruptionBudget":
            (one,) = (one for one in WORKLOADS if fits(spec["selector"]["matchLabels"], one))
            assert spec["minAvailable"] < one["spec"]["replicas"]
        if each["kind"] == "NetworkPolicy" and spec["podSelector"]:
            (one,) = (one for one in WORKLOADS if fits(spec["podSelector"]["matchLabels"], one))
            there = {port["containerPort"] for c in containers(one) for port in c.get("ports", ())}
            for rule in spec["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= there


def test_only_named_connections_are_allowed() -> None:
    policies = [each["spec"] for each in APPLIED if each["kind"] == "NetworkPolicy"]
    assert {"podSelector": {}, "policyTypes": ["Ingress"]} in policies
    for rule in (rule for each in policies for rule in each.get("ingress", ())):
        assert rule["from"] and rule["ports"]


@WORKLOAD
def test_what_a_pod_mounts_and_reads_is_there(workload: dict[str, Any]) -> None:
    claims = {
        each["metadata"]["name"] for each in APPLIED if each["kind"] == "PersistentVolumeClaim"
    }
    volumes = {each["name"]: each for each in pod(workload).get("volumes", ())}
    volumes |= {
        each["metadata"]["name"]: {} for each in workload["spec"].get("volumeClaimTemplates", ())
    }
    for volume in volumes.values():
        if "configMap" in volume:
            assert volume["configMap"]["name"] in MAPS
        if "secret" in volume:
            keys = {item["key"] for item in volume["secret"].get("items", ())}
            assert keys <= SECRETS[volume["secret"]["secretName"]]
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims
    for container in containers(workload):
        for mount in container["volumeMounts"]:
            held = volumes[mount["name"]].get("configMap")
            if held and "subPath" in mount:
                assert mount["subPath"] in MAPS[held["name"]]
        for variable in container.get("env", ()):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                wanted = variable["valueFrom"]["secretKeyRef"]
                assert wanted["key"] in SECRETS[wanted["name"]]
    mounted = {mount["name"] for c in containers(workload) for mount in c["volumeMounts"]}
    assert mounted == volumes.keys()


@WORKLOAD
def test_probes_ask_ports_that_are_there_and_limits_are_set(workload: dict[str, Any]) -> None:
    for container in pod(workload)["containers"]:
        named = {port["name"] for port in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in named
    for container in containers(workload):
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_images_are_those_of_the_compose_file() -> None:
    composed = {service["image"] for service in SERVICES.values()}
    assert {c["image"] for each in WORKLOADS for c in containers(each)} == composed


@pytest.mark.parametrize("name", ["agent", "gateway"])
def test_a_collector_s_ports_variables_and_memory_fit_its_configuration(name: str) -> None:
    (workload,) = (each for each in WORKLOADS if each["metadata"]["name"] == name)
    (container,) = pod(workload)["containers"]
    started = started_with(container["args"])
    settings = config(started)
    doors = {port for door, port in ports(settings).items() if not door.startswith("otlp/self")}
    assert {port["containerPort"] for port in container["ports"]} == doors | {13133, 8888}
    read_by = {each for part in COMBINATIONS[started] for each in variables(read(part))}
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    assert needed(started) <= env.keys()
    assert env.keys() - read_by == {"GOMEMLIMIT"} | (
        {"NODE", "OTEL_RESOURCE_ATTRIBUTES"} if name == "agent" else set()
    )
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
    soft = int(env["GOMEMLIMIT"].removesuffix("MiB"))
    assert settings["processors"]["memory_limiter"]["limit_mib"] < soft < limit
    queue = settings["extensions"]["file_storage/queue"]["directory"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert queue.removesuffix("}").partition(":-")[2] in mounts
    for value in env.values():
        if value.startswith("/"):
            assert any(value.startswith(mount) for mount in mounts), value


def test_addresses_are_of_services_that_have_the_port() -> None:
    offered = {
        (each["metadata"]["name"], str(port["port"]))
        for each in APPLIED
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    text = "".join((ROOT / name).read_text() for name in KUSTOMIZATION["resources"])
    addresses = re.findall(r'value: "?(?:clickhouse://)?([a-z-]+)(?:\.ltrain\.svc)?:(\d+)', text)
    assert ("clickhouse", "9000") in addresses and ("gateway-nodes", "4317") in addresses
    assert set(addresses) <= offered


def test_the_cluster_s_manifest_has_the_name_and_users_of_the_tables() -> None:
    keeper, server, budget = documents("kubernetes/clickhouse-cluster.yaml")
    (made,) = server["spec"]["configuration"]["clusters"]
    assert made["name"] == "ltrain" and made["layout"] == {"shardsCount": 2, "replicasCount": 2}
    (template,) = server["spec"]["templates"]["podTemplates"]
    (container,) = template["spec"]["containers"]
    users = (ROOT / "clickhouse" / "users.xml").read_text()
    assert {each["name"] for each in container["env"]} == set(
        re.findall(r'from_env="(\w+)"', users)
    )
    for each in container["env"]:
        assert each["valueFrom"]["secretKeyRef"]["key"] in SECRETS["ltrain-passwords"]
    assert container["image"] == SERVICES["clickhouse"]["image"]
    assert budget["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    address = server["spec"]["configuration"]["zookeeper"]["nodes"][0]["host"]
    assert address == f"keeper-{keeper['metadata']['name']}"
