import socket
from pathlib import Path

import pytest

from ltrain_collector.errors import BadTarget
from ltrain_collector.forward import Target, parse_targets, require_others
from ltrain_collector.forward.tee import forward_folder
from ltrain_collector.signals import LOGS


def test_targets_have_names_urls_and_variables() -> None:
    default, langfuse, two = parse_targets(
        [
            "http://collector:4318/",
            "langfuse=https://cloud.langfuse.com/api/public/otel",
            "on-site-2=http://[::1]:4318/base",
        ]
    )
    assert default == Target("default", "http://collector:4318")
    assert default.variable == "LTRAIN_FORWARD_HEADERS"
    assert langfuse.variable == "LTRAIN_FORWARD_LANGFUSE_HEADERS"
    assert langfuse.signal_url(LOGS) == "https://cloud.langfuse.com/api/public/otel/v1/logs"
    [grpc] = parse_targets(["near=grpc://localhost:4317"])
    assert (grpc.is_grpc, grpc.address, langfuse.is_grpc) == (True, "localhost:4317", False)
    assert two == Target("on-site-2", "http://[::1]:4318/base")
    assert two.variable == "LTRAIN_FORWARD_ON_SITE_2_HEADERS"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["a=http://x", "a=http://y"], "Two targets of --forward have the name 'a'"),
        (["http://x", "http://y"], "Two targets of --forward have the name 'default'"),
        (["A=http://x"], "'A' is not a name of a target"),
        (["a_b=http://x"], "'a_b' is not a name of a target"),
        (["collector:4318"], "'collector:4318' is not a name of a target"),
        (["ftp://x"], "The URL of the target 'default' is not valid"),
        (["a=collector:4318"], "The URL of the target 'a' is not valid"),
        (["grpc://x"], "or is grpc://HOST:PORT or grpcs://HOST:PORT"),
        (["grpcs://x:4317/v1"], "The URL of the target 'default' is not valid"),
        (["http://x:99999"], "The URL of the target 'default' is not valid"),
        (["a=https://user:secret@x"], "Pass secrets as headers, in LTRAIN_FORWARD_A_HEADERS"),
        (["a=https://x/?key=secret"], "has a user, a password, a query or a fragment"),
    ],
)
def test_other_targets_are_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(BadTarget) as raised:
        parse_targets(texts)
    assert sentence in str(raised.value)
    assert "secret" not in str(raised.value).replace("secrets", "")


def test_headers_are_in_the_form_of_opentelemetry() -> None:
    target = Target("a", "http://x")
    text = "Authorization=Basic%20cGs6c2s=, x-project = one%2Ctwo"
    assert target.headers({target.variable: text}) == {
        "Authorization": "Basic cGs6c2s=",
        "x-project": "one,two",
    }
    assert target.headers({"LTRAIN_FORWARD_HEADERS": "Authorization=other"}) == {}
    with pytest.raises(BadTarget, match="LTRAIN_FORWARD_A_HEADERS is not in") as raised:
        target.headers({target.variable: "Basic secret"})
    assert "secret" not in str(raised.value)


def test_a_target_is_not_the_collector_itself() -> None:
    ports = (4318, 80)
    others = ["a=http://127.0.0.1:4317", "b=http://192.0.2.1:4318", "c=https://localhost"]
    require_others(parse_targets(others), ports)
    own = [
        "http://127.0.0.1:4318",
        "http://localhost:4318/x",
        "http://[::1]:4318",
        "http://0.0.0.0",
    ]
    own = own if socket.has_dualstack_ipv6() else [url for url in own if "::1" not in url]
    for url in own:
        with pytest.raises(BadTarget, match="is this collector itself"):
            require_others(parse_targets([url]), ports)


def test_queues_are_beside_the_store() -> None:
    assert forward_folder(Path("/home/store")) == Path("/home/store.forward")
