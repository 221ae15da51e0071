"""The Collector's configurations use only options that its components have."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.otel_config.collector import (
    COMBINATIONS,
    FOLDER,
    KINDS,
    config,
    laid_over,
    ports,
    unknown,
    variables,
)

from ltrain_collector.access import Sender
from ltrain_instrument import attributes

OPTIONS = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text())
WHOLE = pytest.mark.parametrize("name", COMBINATIONS)
REMOVES = {
    "batch",
    "probabilistic_sampler",
    "tail_sampling",
    "attributes",
    "redaction",
    "transform",
}
"""Processors that sample, cut, or acknowledge data that is only in memory."""
MIB = 1 << 20


def exporters(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from config(name)["exporters"].items()


@WHOLE
def test_every_option_is_one_of_its_component(name: str) -> None:
    settings = config(name)
    for kind in KINDS:
        for each, options in settings.get(kind, {}).items():
            component = each.partition("/")[0]
            assert component in OPTIONS[kind], f"{kind}: {each}"
            assert unknown(options, OPTIONS[kind][component]) == [], each
    assert unknown(settings["service"], OPTIONS["service"]) == []
    assert settings.keys() <= {*KINDS, "service"}


def test_a_typo_is_found() -> None:
    queue = {"sending_queue": {"batch": {"flush_timout": "1s"}, "storage": "x"}}
    assert unknown(queue, OPTIONS["exporters"]["otlp_grpc"]) == ["sending_queue.batch.flush_timout"]
    sized = {"sending_queue": {"sizer": "byte"}}
    assert unknown(sized, OPTIONS["exporters"]["otlp_grpc"]) == ["sending_queue.sizer"]
    named = {"metrics_tables": {"gauge": "otel_metrics_gauge"}}
    assert unknown(named, OPTIONS["exporters"]["clickhouse"]) == ["metrics_tables.gauge"]


def test_files_are_merged_as_the_collector_does() -> None:
    below = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert laid_over(below, {"a": {"c": [3]}}) == {"a": {"b": 1, "c": [3]}, "d": 1}


@WHOLE
def test_pipelines_name_declared_components_and_all_of_them(name: str) -> None:
    settings = config(name)
    lines = settings["service"]["pipelines"].values()
    used = {kind: {each for line in lines for each in line.get(kind, ())} for kind in KINDS[1:]}
    used["extensions"] = set(settings["service"]["extensions"])
    idle = {"otlp_grpc/gateway"} if name == "agent" else set()
    for kind in KINDS:
        declared = set(settings[kind])
        assert used[kind] <= declared, kind
        assert declared - used[kind] <= idle, f"{kind} that nothing uses"
    assert all(line["receivers"] and line["exporters"] for line in lines)


@WHOLE
def test_what_is_referred_to_is_there(name: str) -> None:
    settings = config(name)
    text = yaml.safe_dump(settings)
    referred = re.findall(r"(?:authenticator|storage): (\S+)", text)
    assert referred
    assert set(referred) <= set(settings["service"]["extensions"])


@WHOLE
def test_nothing_is_sampled_or_cut_and_memory_is_guarded_first(name: str) -> None:
    for line in config(name)["service"]["pipelines"].values():
        assert line["processors"][0] == "memory_limiter"
        assert not {each.partition("/")[0] for each in line["processors"]} & REMOVES


@WHOLE
def test_every_queue_is_on_disk_and_is_tried_for_ever(name: str) -> None:
    for each, options in exporters(name):
        assert options["sending_queue"]["storage"] == "file_storage/queue", each
        assert options["retry_on_failure"] | {"enabled": True} == options["retry_on_failure"]
        assert options["retry_on_failure"]["max_elapsed_time"] == 0, each
    storage = config(name)["extensions"]["file_storage/queue"]
    assert storage["fsync"] is True


@WHOLE
def test_an_accepted_request_is_never_too_large_to_forward(name: str) -> None:
    """The Collector drops a span that is larger than `max_size`, so it is the next one's limit."""
    for each, options in exporters(name):
        batch = options["sending_queue"].get("batch", {})
        if batch.get("sizer") == "bytes" and "max_size" in batch:
            assert 0 < batch["min_size"] < 4 * MIB, each
            assert 63 * MIB < batch["max_size"] <= 64 * MIB, each
    for receiver in config(name)["receivers"].values():
        doors = receiver["protocols"]
        if "http" in doors:
            assert doors["grpc"]["max_recv_msg_size_mib"] == 64
            assert doors["http"]["max_request_body_size"] == 64 * MIB


def test_the_agent_tier_listens_on_loopback_and_sends_with_tls_and_a_key() -> None:
    settings = config("agent")
    assert ports(settings) == {"otlp.grpc": 4317, "otlp.http": 4318}
    for door in settings["receivers"]["otlp"]["protocols"].values():
        assert door["endpoint"].startswith("${env:LTRAIN_LISTEN:-127.0.0.1}:")
    out = settings["exporters"]["otlp_grpc/gateway"]
    assert "insecure" not in out["tls"]
    assert settings["extensions"][out["auth"]["authenticator"]] == {"token": "${env:LTRAIN_KEY}"}


def test_the_gateway_takes_nothing_from_outside_without_tls_and_a_key() -> None:
    for receiver in config("gateway to clickhouse")["receivers"].values():
        for door in receiver["protocols"].values():
            outside = not door["endpoint"].startswith("127.0.0.1:")
            assert outside == ("auth" in door) == ("tls" in door), door


def test_each_receiver_of_the_gateway_records_its_sender() -> None:
    settings = config("gateway to clickhouse")
    for who, sender in (("agents", Sender.INGEST), ("trusted", Sender.SERVICE)):
        written = {"key": attributes.SENDER, "action": "upsert", "value": str(sender)}
        assert settings["processors"][f"resource/{who}"] == {"attributes": [written]}
    for name, line in settings["service"]["pipelines"].items():
        who = name.partition("/")[2]
        assert line["processors"] == ["memory_limiter", f"resource/{who}"]
        assert ("otlp/agents" in line["receivers"]) == (line["receivers"] == ["otlp/agents"])
        assert (who == "agents") == (line["receivers"] == ["otlp/agents"])


def test_ltrain_up_gets_each_role_with_its_own_key() -> None:
    settings = config("gateway to ltrain")
    for name, line in settings["service"]["pipelines"].items():
        who = name.partition("/")[2]
        assert line["exporters"] == [f"otlp_http/{who}"]
    keys = {each["headers"]["Authorization"] for each in settings["exporters"].values()}
    assert keys == {
        "Bearer ${env:LTRAIN_UP_INGEST_KEY}",
        "Bearer ${env:LTRAIN_UP_SERVICE_KEY}",
    }


def test_every_variable_is_in_the_head_of_its_file() -> None:
    own = {"LTRAIN_HEALTH", "LTRAIN_LISTEN", "LTRAIN_METRICS"}
    for path in FOLDER.glob("*.yaml"):
        text = path.read_text()
        head = text.split("\n\n")[0] + text.split("Environment:")[1].split("\n\n")[0]
        missing = {each for each in variables(text) if each not in head} - own
        assert missing == ({"LTRAIN_CA"} if path.stem in {"agent-balanced", "to-ltrain"} else set())
