"""Archives of adapters that a server sends: only two files of bounded size are unpacked."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from tests.tinker_server import TinkerServer
from tests.train.learner.tinker.conftest import MODULE, WIDTH

from ltrain_train.errors import BadModel, LearnerFailed, NotFinite
from ltrain_train.learner.tinker_backend import archive
from ltrain_train.learner.tinker_backend.archive import download_adapter

Files = dict[str, bytes]
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 32}


def files(value: float = 1.0, **config: object) -> Files:
    down, up = np.full((4, WIDTH), value, np.float32), np.zeros((WIDTH, 4), np.float32)
    tensors = {f"{MODULE}.lora_A.weight": down, f"{MODULE}.lora_B.weight": up}
    return {
        "adapter_config.json": json.dumps(CONFIG | config).encode(),
        "adapter_model.safetensors": save(tensors),
    }


def pack(content: Files, links: dict[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return packed.getvalue()


Get = Callable[[bytes], Path]


@pytest.fixture
def get(server: TinkerServer, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Return a function that downloads an archive of such bytes into an empty folder."""
    folder = tmp_path / "adapter"
    folder.mkdir()

    def get(packed: bytes) -> Path:
        monkeypatch.setattr(server, "archive", lambda run, name: packed)
        url = f"{server.url}/api/v1/training_runs/r/checkpoints/c/download"
        download_adapter(url, folder, tiny, 4)
        return folder

    return get


def test_an_adapter_is_found_in_any_folder_of_the_archive(get: Get) -> None:
    packed = pack({f"deep/{name}": data for name, data in files().items()} | {"deep/x.py": b"1"})
    assert sorted(path.name for path in get(packed).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_nothing_is_written_outside_of_the_folder(get: Get, tmp_path: Path) -> None:
    names = {f"../{name}": data for name, data in files().items()}
    folder = get(pack(names | {"../../evil": b"x", "/tmp/ltrain-evil": b"x"}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]
    assert len(list(folder.iterdir())) == 2 and not Path("/tmp/ltrain-evil").exists()


@pytest.mark.parametrize(
    ("packed", "sentence"),
    [
        pytest.param(b"no archive", "cannot be read", id="garbage"),
        pytest.param(pack(files())[:-900], "cannot be read", id="cut"),
        pytest.param(pack({}), "has no adapter_config", id="empty"),
        pytest.param(
            pack({"adapter_config.json": files()["adapter_config.json"]},
                 {"adapter_model.safetensors": "/etc/passwd"}),
            "has no adapter_model",
            id="link",
        ),
        pytest.param(
            pack({**files(), "again/adapter_config.json": b"{}"}), "or twice", id="twice"
        ),
        pytest.param(pack(files(r=8)), "With rank 8", id="another rank"),
        pytest.param(pack(files(modules_to_save=["lm_head"])), "Plain LoRA", id="more than LoRA"),
    ],
)  # fmt: skip
def test_a_bad_archive_is_an_error(packed: bytes, sentence: str, get: Get) -> None:
    with pytest.raises(BadModel, match=sentence):
        get(packed)


def test_an_archive_that_is_too_large_is_not_unpacked(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "adapter_size", lambda base, rank: 1)
    monkeypatch.setattr(archive, "SPARE", 1000)
    with pytest.raises(BadModel, match="was not unpacked"):
        get(pack(files() | {"adapter_model.safetensors": bytes(100_000)}))
    monkeypatch.setattr(archive, "SPARE", 10)
    with pytest.raises(LearnerFailed, match="more than 12 bytes"):
        get(pack(files()))


def test_a_weight_that_is_not_finite_is_an_error(get: Get) -> None:
    with pytest.raises(NotFinite):
        get(pack(files(float("nan"))))
