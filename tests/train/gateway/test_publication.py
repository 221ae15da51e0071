"""Publication of a version: verified, loaded while no call runs, and current; or refused."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit

from ltrain_collector.access import sign_admin
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.gateway.connection import GatewayRefused, GatewayUnreachable, PolicyServerAway
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving import host
from ltrain_train.gateway.serving.gate import Gate
from ltrain_train.gateway.serving.policy_server import PolicyServer, read_weights
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.upstream import Upstream
from ltrain_train.policy import HostMemory, Policies, SharedTensor, SharedWeights
from ltrain_train.publishing import policy_commands
from ltrain_train.publishing.retention import prune_versions


def test_a_version_is_loaded_and_recorded_on_later_calls(stage: Any, vllm: Any) -> None:
    stage.ask("w3")
    seconds = stage.client.load("policy", 1)
    stage.ask("w3")
    assert 0 <= seconds < 5
    assert stage.client.current_version("policy") == 1
    assert stage.policies.current("policy") == 1
    versions = [span["attributes"]["ltrain.policy.version"] for span in stage.spans()]
    assert versions == [0, 1]
    weights = str(stage.policies.path("policy", 1))
    reload = {"method": "reload_weights", "kwargs": {"weights_path": weights}}
    assert vllm.admin == [
        ("/pause?mode=wait", None),
        ("/collective_rpc", reload),
        ("/reset_prefix_cache", None),
        ("/update_weight_version", {"new_version": "policy/v1"}),
        ("/resume", None),
    ]
    assert stage.log_lines == ["serving policy v1, previously v0"]


@pytest.fixture
def staging(prepared_stage: Any) -> Iterator[Any]:
    """A gateway whose policy server stages weights."""
    prepared_stage.stages = True
    with prepared_stage.running() as stage:
        yield stage


def called(vllm: Any) -> list[str]:
    """Return the admin requests, those of the workers by their method."""
    return [body["method"] if "rpc" in path else path for path, body in vllm.admin]


SWAP = [
    *("stage_weights", "staged", "/pause?mode=wait", "swap_weights"),
    *("/reset_prefix_cache", "/update_weight_version", "/resume"),
]


def test_staged_weights_are_loaded_before_calls_wait(staging: Any, vllm: Any) -> None:
    staging.client.load("policy", 1)
    assert called(vllm) == [*SWAP[:2], "staged_digests", *SWAP[2:]]
    wanted = {"path": str(staging.policies.path("policy", 1)), "digest": "1"}
    assert vllm.admin[0][1] == {"method": "stage_weights", "kwargs": wanted}
    assert vllm.weights == "policy/v1"


def test_weights_that_cannot_be_staged_are_reloaded_for_a_stated_reason(
    staging: Any, vllm: Any
) -> None:
    vllm.obstacle = "its layers are compiled"
    staging.client.load("policy", 1)
    assert called(vllm)[:3] == ["stage_weights", "/pause?mode=wait", "reload_weights"]
    reason = "vLLM loads new weights while calls wait, because its layers are compiled"
    assert staging.log_lines == [reason, "serving policy v1, previously v0"]


def test_a_load_that_fails_beside_the_served_weights_changes_nothing(
    staging: Any, vllm: Any
) -> None:
    vllm.refuse_reload = 1
    with pytest.raises(GatewayRefused, match=r"refused POST /collective_rpc with status 500"):
        staging.client.load("policy", 1)
    assert called(vllm) == ["stage_weights", "staged"]  # no call has waited
    assert staging.client.current_version("policy") == staging.policies.current("policy") == 0
    assert staging.ask("w3").status_code == 200


def test_a_swap_that_fails_is_followed_by_the_previous_weights(staging: Any, vllm: Any) -> None:
    vllm.refuse_swap = 1
    with pytest.raises(GatewayRefused, match=r"refused POST /collective_rpc with status 500"):
        staging.client.load("policy", 1)
    previous = str(staging.policies.path("policy", 0))
    last = [body["kwargs"] for _, body in vllm.admin if body and "kwargs" in body][-3:]
    assert last == [{"path": previous}, {}, {}]
    assert called(vllm)[-len(SWAP) :] == SWAP
    assert (vllm.weights, staging.given_up) == ("policy/v0", 0)


def test_a_server_whose_swaps_fail_twice_is_killed(staging: Any, vllm: Any) -> None:
    vllm.refuse_swap = 2
    with pytest.raises(PolicyServerAway, match=r"was lost .* Publish v1 again"):
        staging.client.load("policy", 1)
    assert staging.given_up == 1


class Memory:
    """A learner's memory with the weights of version 1, as far as the fake vLLM reads it."""

    def __init__(self, change: bytes = b"") -> None:
        token = token_hex(16)
        self.descriptor = os.memfd_create(f"ltrain-{token}")
        os.write(self.descriptor, change + bytes([1]) * (10 - len(change)))
        memory = HostMemory(process=os.getpid(), descriptor=self.descriptor)
        tensors = (
            SharedTensor(name="w", dtype="float32", shape=(4,), start=0),
            SharedTensor(name="m.q.weight", dtype="float32", shape=(3, 2), start=4),
        )
        self.message = SharedWeights(
            token=token, learner="a", size=10, memory=memory, tensors=tensors
        )

    def without(self, name: str) -> SharedWeights:
        kept = tuple(each for each in self.message.tensors if each.name != name)
        return self.message.model_copy(update={"tensors": kept})


@pytest.fixture(params=[True, False], ids=["staged", "reloaded"])
def sharing(prepared_stage: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A gateway whose policy server reads a learner's memory."""
    prepared_stage.stages, prepared_stage.shares = request.param, True
    with prepared_stage.running() as stage:
        yield stage


def sources(vllm: Any) -> list[str]:
    """Return where the policy server has read weights."""
    bodies = [body for path, body in vllm.admin if "rpc" in path]
    loads = [body for body in bodies if body["method"] in ("stage_weights", "reload_shared")]
    files = ["files" for body in bodies if body["method"] == "reload_weights"]
    return ["memory" if "shared" in body["kwargs"] else "files" for body in loads] + files


def test_weights_are_read_from_the_memory_of_the_learner(sharing: Any, vllm: Any) -> None:
    assert sharing.client.shares("policy")
    memory = Memory()
    sharing.client.offer("policy", memory.message)
    assert sources(vllm) == (["memory"] if sharing.stages else [])
    assert called(vllm) == (["stage_weights"] if sharing.stages else [])  # no call has waited
    sharing.client.load("policy", 1, shared=memory.message)
    assert (sources(vllm), vllm.weights) == (["memory"], "policy/v1")
    assert (sharing.client.current_version("policy"), sharing.policies.current("policy")) == (1, 1)
    assert sharing.log_lines == ["serving policy v1, previously v0"]


def test_only_the_first_weights_of_an_origin_are_compared(sharing: Any, vllm: Any) -> None:
    for version in (1, 0, 1):
        memory = Memory()
        shared = memory.message if version else None
        sharing.client.load("policy", version, shared=shared)
    wanted = ["digest" in body["kwargs"] for path, body in vllm.admin if "rpc" in path]
    assert wanted.count(True) == (2 if sharing.stages else 1)  # one of files, one of memory


def test_a_tensor_that_differs_from_the_version_is_named_and_refused(
    sharing: Any, vllm: Any
) -> None:
    memory = Memory(bytes([7]))
    with pytest.raises(GatewayRefused, match=r"loaded another tensor w than '.*v1' has"):
        sharing.client.load("policy", 1, shared=memory.message)
    assert (sharing.client.current_version("policy"), sharing.policies.current("policy")) == (0, 0)
    assert sharing.ask("w3").status_code == 200
    assert vllm.weights == ("default" if sharing.stages else "policy/v0")
    sharing.client.load("policy", 1)
    assert vllm.weights == "policy/v1"


def test_the_files_are_loaded_if_the_memory_cannot_be(sharing: Any, vllm: Any) -> None:
    gone, missing = Memory(), Memory()
    os.close(gone.descriptor)
    sharing.client.load("policy", 1, shared=gone.message)
    assert vllm.weights == "policy/v1"
    sharing.client.load("policy", 0)
    sharing.client.load("policy", 1, shared=Memory().message)  # of the same learner
    assert (vllm.weights, sources(vllm)[-1]) == ("policy/v1", "files")
    sharing.client.load("policy", 0)
    other = missing.without("w").model_copy(update={"learner": "b"})
    sharing.client.load("policy", 1, shared=other)
    assert (vllm.weights, sources(vllm)[-1]) == ("policy/v1", "files")
    reasons = [line for line in sharing.log_lines if line.startswith("vLLM loads new weights from")]
    assert len(reasons) == 2
    assert f"/fd/{gone.descriptor}" in reasons[0]
    assert reasons[1].endswith("differ in tensor w")


def test_a_server_that_was_started_again_reads_the_memory_again(sharing: Any, vllm: Any) -> None:
    memory = Memory()
    sharing.client.offer("policy", memory.message)
    server = sharing.publication.server
    asyncio.run_coroutine_threadsafe(server.label_started(), sharing.loop).result(10)
    sharing.client.load("policy", 1, shared=memory.message)
    assert sources(vllm) == ["memory"] * (2 if sharing.stages else 1)
    assert vllm.weights == "policy/v1"


def test_a_server_that_reads_no_memory_loads_the_files(stage: Any, vllm: Any) -> None:
    assert not stage.client.shares("policy")
    memory = Memory()
    stage.client.offer("policy", memory.message)
    stage.client.load("policy", 1, shared=memory.message)
    assert (sources(vllm), vllm.weights) == (["files"], "policy/v1")


def test_a_description_of_memory_is_checked(sharing: Any, vllm: Any, load: Any) -> None:
    content = Memory().message.model_dump(mode="json") | {"token": "../x"}
    headers = {"authorization": f"Bearer {sign_admin(load('stage').SECRET)}"}
    for path, body in (("offer", content), ("current", {"version": 1, "weights": content})):
        url = f"/admin/policies/policy/{path}"
        answer = sharing.http.post(url, json=body, headers=headers)
        assert answer.status_code == 400
        assert "describes no weights" in answer.json()["error"]["message"]
        assert sharing.http.post(url, json=body).status_code == 401
    assert vllm.admin == []


def test_policy_use_publishes_through_the_gateway_that_serves_the_policy(
    stage: Any, vllm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(stage.home))
    monkeypatch.setenv("LTRAIN_GATEWAY", stage.url)
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "a secret of thirty-two characters!")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    policy_commands.use_version("policy@1")
    assert (stage.client.current_version("policy"), vllm.weights) == (1, "policy/v1")
    policy_commands.use_version("policy@0")  # a rollback
    assert (stage.client.current_version("policy"), vllm.weights) == (0, "policy/v0")
    assert stage.policies.current("policy") == 0
    assert capsys.readouterr().out.count("The gateway serves it.") == 2
    stage.policies.register("other", stage.home.parent / "model")
    policy_commands.use_version("other@0")
    assert "No gateway serves the policy now." in capsys.readouterr().out


def test_a_version_is_served_without_becoming_current(stage: Any, vllm: Any) -> None:
    stage.client.load("policy", 1, current=False)
    stage.ask("w3")
    assert (stage.client.current_version("policy"), stage.policies.current("policy")) == (1, 0)
    assert stage.publication.kept_version == 1  # of a policy server that starts again
    assert vllm.weights == "policy/v1"
    assert [span["attributes"]["ltrain.policy.version"] for span in stage.spans()] == [1]
    stage.client.load("policy", 1)
    assert (stage.policies.current("policy"), stage.publication.kept_version) == (1, 1)
    stage.policies.promote("policy", 0)
    assert stage.publication.kept_version == 0


def test_a_version_that_is_served_is_not_removed(stage: Any, write_model: Any) -> None:
    policies, runs = stage.policies, stage.home / "runs"
    for number in (2, 3):
        draft = write_model(stage.home.parent / f"v{number}", fill=number)
        policies.register_files("policy", draft, parent=0, dataset="d", recipe="r")
    stage.client.load("policy", 1, current=False)
    assert prune_versions(policies, "policy", runs, keep=1).versions == [2]
    stage.client.load("policy", 3, current=False)
    assert prune_versions(policies, "policy", runs, keep=1).versions == [1]


def test_publishing_the_served_version_loads_nothing(stage: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    stage.client.load("policy", 0)
    assert vllm.admin == []


def test_a_policy_server_without_the_current_version_loads_it_again(stage: Any, vllm: Any) -> None:
    stage.client.load("policy", 1)
    vllm.weights = "default"  # its owner started it again
    stage.client.load("policy", 1)
    assert vllm.weights == "policy/v1"
    assert [path for path, _ in vllm.admin].count("/collective_rpc") == 2
    assert stage.log_lines[1:] == ["the policy server had weights 'default'; loaded policy v1"]
    vllm.weights, vllm.refuse_reload = "default", 1
    with pytest.raises(GatewayRefused, match=r"refused POST /collective_rpc with status 500"):
        stage.client.load("policy", 1)


def test_a_call_in_flight_ends_on_its_version_and_the_next_waits(stage: Any) -> None:
    threads = [
        threading.Thread(target=lambda: stage.ask("slow w3")),
        threading.Thread(target=lambda: stage.client.load("policy", 1)),
        threading.Thread(target=lambda: stage.ask("w4")),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    health = stage.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "waiting")
    assert health.json()["reason"] == "policy v1 is being loaded"
    assert stage.client.is_running()
    assert not stage.client.is_ready()
    time.sleep(0.1)
    seconds = stage.client.call_seconds("policy")
    assert seconds.keys() == {"abc.1"}
    assert 0.5 < seconds["abc.1"] < 30
    for thread in threads:
        thread.join()
    assert stage.client.call_seconds("policy")["abc.1"] >= seconds["abc.1"]
    assert stage.client.is_ready()
    log_lines = [span["attributes"] for span in stage.spans()]
    assert [each["ltrain.policy.version"] for each in log_lines] == [0, 1]
    assert [each["ltrain.response_token_ids"] for each in log_lines] == ["[3]", "[4]"]


def test_an_unknown_version_is_refused(stage: Any, vllm: Any) -> None:
    with pytest.raises(GatewayRefused, match=r"has no version 7. Choose from: 0, 1"):
        stage.client.load("policy", 7)
    assert vllm.admin == []


def test_a_half_written_version_is_refused(stage: Any, vllm: Any) -> None:
    (stage.policies.directory / "policy" / "v2").mkdir()
    with pytest.raises(GatewayRefused, match=r"half-written"):
        stage.client.load("policy", 2)
    assert vllm.admin == []


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_version_is_never_sent_to_vllm(stage: Any, vllm: Any, damage: Damage) -> None:
    damage_file(stage.policies.path("policy", 1) / "model.safetensors", damage)
    with pytest.raises(GatewayRefused, match=r"is damaged: model.safetensors has .* expected "):
        stage.client.load("policy", 1)
    assert vllm.admin == []
    assert stage.ask("w3").status_code == 200


def test_a_refused_load_leaves_the_previous_version(stage: Any, vllm: Any) -> None:
    vllm.refuse_reload = 1
    with pytest.raises(GatewayRefused, match=r"refused POST /collective_rpc with status 500"):
        stage.client.load("policy", 1)
    assert stage.client.current_version("policy") == stage.policies.current("policy") == 0
    assert stage.ask("w3").status_code == 200
    assert (vllm.weights, stage.given_up) == ("policy/v0", 0)


def test_a_server_that_cannot_load_the_previous_version_is_killed_and_published_again(
    stage: Any, vllm: Any
) -> None:
    vllm.refuse_reload = 2
    with pytest.raises(
        PolicyServerAway, match=r"was lost .* Publish v1 again when the server serves v0"
    ):
        stage.client.load("policy", 1)
    assert stage.given_up == 1
    stage.client.load("policy", 1)
    assert vllm.weights == "policy/v1"


def test_a_publication_to_an_unreachable_server_can_be_repeated(stage_without_vllm: Any) -> None:
    with pytest.raises(PolicyServerAway, match=r"No policy server answers at http://127"):
        stage_without_vllm.client.load("policy", 1)
    assert stage_without_vllm.client.current_version("policy") == 0


def test_a_publication_that_lacks_files_can_be_repeated(
    stage: Any, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = OSError(errno.EMFILE, "Too many open files")

    async def load(*_: Any, **__: Any) -> float:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "load", load)
        with pytest.raises(PolicyServerAway, match=r"cannot answer at the moment: .*Too many open"):
            stage.client.load("policy", 1)
        fault.errno = errno.EACCES
        with pytest.raises(GatewayRefused, match="answered 500") as refused:
            stage.client.load("policy", 1)
    assert not isinstance(refused.value, PolicyServerAway)
    stage.client.load("policy", 1)


def test_only_an_admin_key_publishes(stage: Any, vllm: Any) -> None:
    path = "/admin/policies/policy/current"
    for headers in ({}, {"authorization": f"Bearer {stage.key()}"}):
        response = stage.http.post(path, json={"version": 1}, headers=headers)
        assert response.status_code == 401
        assert "needs a key of kind admin" in response.json()["error"]["message"]
    assert vllm.admin == []


def test_a_publication_must_name_a_version(stage: Any, load: Any) -> None:
    key = sign_admin(load("stage").SECRET)
    response = stage.http.post(
        "/admin/policies/policy/current", json={}, headers={"authorization": f"Bearer {key}"}
    )
    assert response.status_code == 400
    sentence = 'The request names no version. Send a JSON object such as {"version": 3}.'
    assert response.json()["error"]["message"] == sentence


def test_another_policy_is_not_served(stage: Any) -> None:
    with pytest.raises(GatewayRefused, match=r"no model 'other'. Choose from: policy"):
        stage.client.load("other", 0)


def test_an_unreachable_gateway_is_reported(tmp_path: Path) -> None:
    client = GatewayClient("http://127.0.0.1:9", "s" * 32)
    assert not client.is_running()
    with pytest.raises(GatewayUnreachable, match=r"Start it with `ltrain serve MODEL`"):
        client.current_version("policy")
    client.close()


async def _shut_with_a_call() -> Gate:
    gate = Gate()
    await gate.enter()
    with pytest.raises(Refused, match=r"1 call still in flight after 0.01 s"):
        async with gate.shut("a test", drain=0.01):
            raise AssertionError("it was entered with a call in flight")
    return gate


async def _sync_with(vllm: Any, home: Path, listings: list[str], lines: list[str]) -> str:
    """Sync a returned server that first lists `listings`; return the last reason for waiting."""
    upstream, policies = Upstream(vllm.url, "policy"), Policies(home)
    weights = read_weights(policies, "policy", 0)
    server = PolicyServer(policies, upstream, weights, on_lost=lambda: None, log=lines.append)
    publication = Publication("policy", server, version=0)
    waiting = host.PolicyHost(server, [publication], None, lines.append)
    vllm.model_list = listings[0]
    syncing = asyncio.ensure_future(waiting.sync_returned())
    for count, listing in enumerate(listings, 1):
        vllm.model_list = listing
        while len(lines) < count and not syncing.done():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # a second request is answered alike
    reason, vllm.model_list = publication.gate.reason, None
    await asyncio.wait_for(syncing, 30)
    await upstream.close()
    return reason


def test_a_returned_server_that_is_not_the_policys_is_named_once_and_waited_for(
    vllm: Any, tmp_path: Path, write_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "UPSTREAM_POLL", 0.01)
    Policies(tmp_path).register("policy", write_model(tmp_path / "model"))
    bad = [
        "<html>\n<h1>Hi",
        "[1]",
        "{}",
        '{"data": [3]}',
        '{"data": []}',
        '{"data": [{"id": "x"}]}',
    ]
    lines: list[str] = []
    reason = asyncio.run(_sync_with(vllm, tmp_path, bad, lines))
    answer = f"The server at {vllm.url} does not answer GET /v1/models as vLLM does: "
    assert [line.startswith(answer) for line in lines] == [True] * 4 + [False] * 3
    assert lines[0].startswith(f"{answer}'<html> <h1>Hi'. Check")
    assert "serves no model. Start it with --served-model-name policy." in lines[4]
    assert "serves x. Start it with --served-model-name policy, or use --policy x." in lines[5]
    assert reason == lines[5]
    assert "loaded policy v0" in lines[6]


def test_a_drain_that_takes_too_long_opens_the_gate_again() -> None:
    assert asyncio.run(_shut_with_a_call()).is_open


def test_a_proxy_in_the_environment_is_not_used(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = GatewayClient(stage.url, "s" * 32)
    assert client.is_running()
    client.close()
