"""The pieces for a machine without packages and network, made of wheels that the tests write."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACK = [sys.executable, "-m", "benchmarks.gpu.pack"]
LIMIT = 64 << 20
"""Bytes that a command carries at most."""
VLLM_TAG = "cp38-abi3-manylinux_2_28_x86_64"


def write_wheel(folder: Path, name: str, tag: str, files: Mapping[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as wheel:
        for path, content in (dict(files) | metadata).items():
            wheel.writestr(path, content)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    noise = {"alpha/__init__.py": b"", "alpha/noise": os.urandom(5 << 20)}
    write_wheel(folder, "alpha", "py3-none-any", noise)
    parts = {"vllm/__init__.py": b"", "vllm/_C.so": b"c", "vllm/_moe_C.abi3.so": b"moe"}
    write_wheel(folder, "vllm", VLLM_TAG, parts)
    (folder / "packages.txt").write_text("# two\nalpha==1.0\nvllm==1.0\n")
    options = ["--packages", str(folder / "packages.txt"), "--sources", "--no-model"]
    command = [*PACK, str(folder / "out"), "--piece", "2", *options]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_a_piece_has_at_most_the_bytes_that_are_carried(packed: Path) -> None:
    names = json.loads((packed / "pieces.json").read_text())
    sizes = [(packed / name).stat().st_size for name in names]
    assert max(sizes) == 2 << 20 < LIMIT
    others = [name for name in names if name.startswith("site-others")]
    assert len(others) >= 3  # 5 MiB of noise, and ltrain
    assert others == [f"site-others.txz.{number}" for number in range(len(others))]
    assert {path.name for path in packed.iterdir()} == {*names, "pieces.json", "unpack.py"}


def test_the_pieces_become_an_environment(packed: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(packed / "unpack.py"), str(tmp_path / "env")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("/env/bin/python -m benchmarks.gpu\n")
    python, tree = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "tree"
    code = "import alpha, vllm, ltrain_train, os; print(os.listdir(vllm.__path__[0]))"
    found = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert "_C.so" in found.stdout and "_moe_C" not in found.stdout
    helps = subprocess.run(
        [python, "-m", "benchmarks.gpu", "--help"], cwd=tree, stdout=subprocess.PIPE, check=True
    )
    assert b"--quick" in helps.stdout
    program = [str(tmp_path / "env" / "bin" / "vllm-python"), "-I", "-c", "import vllm"]
    assert subprocess.run(program, check=False).returncode == 0


@pytest.mark.parametrize(("content", "fault"), [(None, "is missing"), (b"x", "is damaged")])
def test_a_piece_that_is_not_whole_is_an_error(
    packed: Path, tmp_path: Path, content: bytes | None, fault: str
) -> None:
    for path in packed.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    (tmp_path / "tree.txz.0").unlink()
    if content is not None:
        (tmp_path / "tree.txz.0").write_bytes(content)
    command = [sys.executable, str(tmp_path / "unpack.py"), str(tmp_path / "env")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"tree.txz.0 {fault}" in done.stderr
