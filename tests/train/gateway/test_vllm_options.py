"""The arguments that vLLM is started with, by device."""

import pytest

from ltrain_train.gateway.serving.vllm import VllmOptions, find_option
from ltrain_train.gpu import is_usable

STAGED = ["--worker-extension-cls", "staged_weights.StagedWeights"]
SHARED = ["--worker-extension-cls", "shared_tensors.SharedTensors"]
CPU = ["--block-size", "32", "--enforce-eager", *STAGED]


def differing(*, gpu: bool, max_num_seqs: int | None = None) -> list[str]:
    """Return the arguments between those that all devices have."""
    arguments = VllmOptions(gpu=gpu, max_num_seqs=max_num_seqs).arguments()
    assert arguments[:4] == ["--dtype", "bfloat16", "--max-model-len", "auto"]
    return arguments[4 : arguments.index("--generation-config")]


def test_a_gpu_has_vllms_own_batches_blocks_and_cuda_graphs() -> None:
    assert differing(gpu=True) == SHARED
    assert differing(gpu=False) == ["--max-num-seqs", "64", *CPU]


@pytest.mark.parametrize("gpu", [True, False])
def test_a_chosen_batch_is_that_of_every_device(gpu: bool) -> None:
    assert differing(gpu=gpu, max_num_seqs=8)[:2] == ["--max-num-seqs", "8"]


@pytest.mark.parametrize(
    ("gpu", "extra", "stages"),
    [
        (True, (), False),
        (False, (), True),
        (False, ("--worker-extension-cls", "mine.Methods"), False),
        (False, ("--worker_extension_cls=mine.Methods",), False),
    ],
)
def test_weights_are_staged_on_a_cpu_by_the_class_of_ltrain(
    gpu: bool, extra: tuple[str, ...], stages: bool
) -> None:
    assert VllmOptions(gpu=gpu, extra=extra).stages is stages


@pytest.mark.parametrize(
    ("gpu", "gpus", "extra", "shares"),
    [
        (True, "", (), True),
        (True, "", ("--enable-sleep-mode",), False),
        (True, "1", (), False),
        (False, "", ("--data-parallel-size", "2"), False),
        (False, "", ("--tensor-parallel-size", "2"), False),
        (True, "", ("--worker-extension-cls", "mine.Methods"), False),
    ],
)
def test_the_memory_of_a_learner_is_read_by_one_vllm_on_its_device(
    gpu: bool, gpus: str, extra: tuple[str, ...], shares: bool
) -> None:
    options = VllmOptions(gpu=gpu, gpus=gpus, extra=extra)
    assert options.shares is shares
    assert ("shared_tensors.SharedTensors" in options.arguments()) is (shares and gpu)


@pytest.mark.parametrize("gpu", [True, False])
def test_further_arguments_come_last(gpu: bool) -> None:
    chosen = ("--enforce-eager", "--block-size", "64")
    assert VllmOptions(gpu=gpu, extra=chosen).arguments()[-3:] == list(chosen)


@pytest.mark.parametrize(
    ("gpus", "extra", "replicas"),
    [
        ("", (), 1),
        ("3", (), 1),
        ("2,3", (), 2),
        ("2,3", ("--tensor-parallel-size", "2"), 1),
        ("0,1,2,3", ("-tp=2",), 2),
        ("0,1,2,3", ("--tensor_parallel_size=8",), 1),
        ("0,1,2,3", ("--data-parallel-size", "3"), 3),
        ("", ("-dp", "2"), 2),
    ],
)
def test_the_gpus_of_vllm_hold_replicas(gpus: str, extra: tuple[str, ...], replicas: int) -> None:
    options = VllmOptions(gpus=gpus, extra=extra)
    wanted = ["--data-parallel-size", str(replicas), "--api-server-count", "1", *extra]
    assert options.replicas == replicas
    assert (options.arguments()[-len(wanted) :] == wanted) is (replicas > 1)


def test_an_option_is_written_in_two_ways() -> None:
    assert (
        find_option(["--a=0.5"], "--a") == find_option(["--a", "0.1", "--a", "0.5"], "--a") == 0.5
    )
    assert find_option(["--ab", "1"], "--a") is None
    assert find_option(["--a_b", "1"], "--a-b", "-c") == find_option(["-c=1"], "--a-b", "-c") == 1


def test_no_media_is_fetched_unless_its_domain_is_named() -> None:
    chosen = ("--allowed-media-domains", "images.example.com")
    arguments = VllmOptions(extra=chosen).arguments()
    at = [n for n, each in enumerate(arguments) if each == chosen[0]]
    assert [arguments[n + 1] for n in at] == ["none.invalid", "images.example.com"]


def test_the_device_is_that_of_the_environment() -> None:
    assert VllmOptions().gpu is is_usable()
