"""Pack the check for a machine without packages and network: `python -m benchmarks.gpu.pack OUT`.

OUT gets pieces, each small enough to be carried by itself, and `unpack.py`, which makes an
environment of them beside the Python of that machine: docs/gpus.md. The packages are those of
`carried.txt`, for Python 3.12 on Linux.
"""

import argparse
import glob
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARRIED = Path(__file__).with_name("carried.txt")
UNPACK = Path(__file__).with_name("unpack.py")
PIECE = 50
"""MiB of a piece: with a checkout of the repository, a command carries less than 64."""
PLATFORMS = [
    *(f"manylinux_2_{number}_x86_64" for number in (35, 34, 31, 28, 27, 24, 17, 12, 5)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
]
TARGET = ("--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:")
SOURCES = ("antlr4-python3-runtime==4.9.3",)
"""Packages that are released as source only."""
UNUSED = (
    *("bin", "include", "tests", "scripts", "**/__pycache__", "xgrammar/lib"),
    *("chdb/include", "pycountry/locales", "ray/dashboard/client"),
    *("mistral_common/data", "ray/jars", "ray/rllib", "ray/data", "ray/serve", "ray/tune"),
    *("ray/train", "ray/llm", "ray/core/src/ray/gcs", "ray/core/src/ray/raylet"),
    *("vllm/third_party/fmha_sm100", "vllm/third_party/deep_gemm"),
    *("vllm/vllm-rs", "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_moe_C*", "vllm/_flashmla*"),
    "vllm/_qutlass*",
)
"""Files that the check never reads: other attentions and layers of vLLM, and most of Ray, of which
verl imports the core and starts nothing."""
TREE = (
    *("benchmarks", "setup", "examples/text_to_sql", "tests/end_to_end/two_turn"),
    *("tests/train/tiny.py", "tests/train/learner/reference.py"),
)
"""Parts of the repository that the stages read, beside ltrain itself."""
LARGE = {"vllm": ("vllm", "vllm-*"), "chdb": ("chdb", "_chdb*", "chdb_core*")}
"""Paths of archives of their own, so that archives are unpacked at the same time."""


def install(site: Path, packages: Path, sources: Sequence[str]) -> None:
    """Install the packages of a list into a folder, without what the check does not use."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-compile", "--target", str(site)]
    platforms = [flag for name in PLATFORMS for flag in ("--platform", name)]
    subprocess.run([*pip, *TARGET, *platforms, "-r", str(packages)], check=True)
    if sources:
        subprocess.run([*pip, "--no-build-isolation", *sources], check=True)
    for pattern in UNUSED:
        remove(site, pattern)


def remove(site: Path, pattern: str) -> None:
    """Remove the files and folders of a pattern."""
    for name in glob.glob(pattern, root_dir=site, recursive=True):
        path = site / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def add_ltrain(site: Path, tree: Path) -> None:
    """Install this repository's wheel, and copy the parts that the stages read."""
    with tempfile.TemporaryDirectory() as folder:
        hatchling = Path(sys.executable).with_name("hatchling")
        build = [str(hatchling), "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        shutil.unpack_archive(wheel, site, "zip")
    for name in TREE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)


def add_model(tree: Path) -> None:
    """Download the weights of SmolLM2 as they are released, a third of their size in bf16."""
    from ltrain_train.smollm2 import download_gguf

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(download_gguf(Path(folder)), tree)


def write_archives(site: Path, tree: Path, out: Path, piece: int, preset: int) -> list[Path]:
    """Write the archives in pieces of at most so many bytes, and return the pieces."""
    large = {name: expand(site, patterns) for name, patterns in LARGE.items()}
    taken = {path for paths in large.values() for path in paths}
    rest = sorted(path.name for path in site.iterdir() if path.name not in taken)
    pieces = []
    for name, folder, paths in (
        *((f"site-{name}", site, paths) for name, paths in large.items()),
        ("site-others", site, rest),
        ("tree", tree, ["."]),
    ):
        if paths:
            pieces += split(compress(folder, paths, out / f"{name}.txz", preset), piece)
    return pieces


def expand(site: Path, patterns: Iterable[str]) -> list[str]:
    """Return the names of patterns."""
    return [name for pattern in patterns for name in glob.glob(pattern, root_dir=site)]


def compress(folder: Path, paths: Sequence[str], archive: Path, preset: int) -> Path:
    """Write an archive of paths of a folder."""
    with archive.open("wb") as file:
        command = ["tar", "c", "--owner=0", "--group=0", "-C", str(folder), *paths]
        tar = subprocess.Popen(command, stdout=subprocess.PIPE)
        subprocess.run(["xz", "-T0", f"-{preset}"], stdin=tar.stdout, stdout=file, check=True)
        if tar.wait():
            raise SystemExit(f"tar ended with status {tar.returncode}")
    return archive


def split(archive: Path, piece: int) -> list[Path]:
    """Write the pieces of an archive, remove it, and return them."""
    pieces: list[Path] = []
    with archive.open("rb") as file:
        while data := file.read(piece):
            pieces.append(archive.with_name(f"{archive.name}.{len(pieces)}"))
            pieces[-1].write_bytes(data)
    archive.unlink()
    return pieces


def write_list(pieces: Sequence[Path], out: Path) -> None:
    """Write the names and digests of the pieces, by which `unpack.py` knows that all are there."""
    digests = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in pieces}
    (out / "pieces.json").write_text(json.dumps(digests, indent=1))
    shutil.copy(UNPACK, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--piece", type=int, default=PIECE, help="MiB of a piece, at most")
    parser.add_argument("--preset", type=int, default=1, help="of xz: 0 is fast, 9 is small")
    parser.add_argument("--packages", type=Path, default=CARRIED, help="the list of packages")
    parser.add_argument("--sources", nargs="*", default=SOURCES, help="those without a wheel")
    parser.add_argument("--no-model", action="store_true", help="without the weights of SmolLM2")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        site, tree = Path(folder) / "site", Path(folder) / "tree"
        tree.mkdir()
        install(site, options.packages, options.sources)
        add_ltrain(site, tree)
        if not options.no_model:
            add_model(tree)
        size = options.piece << 20
        pieces = write_archives(site, tree, options.out, size, options.preset)
    write_list(pieces, options.out)
    for each in pieces:
        print(f"{each.name}: {each.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
