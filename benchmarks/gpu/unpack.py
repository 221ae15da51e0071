"""Makes an environment of the pieces beside it: `python3 unpack.py ENVIRONMENT`.

It needs only the standard library. The environment has the carried packages, and those of the
Python that runs this. It prints the commands of the check.
"""

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = {
    "ltrain": "#!{python}\nfrom ltrain.cli import main\nmain()\n",
    # the gateway starts vLLM's program with this Python; vLLM 0.25 gets one of its own
    "vllm-python": '#!/bin/sh\ncase "$1" in *vllm_process.py) shift; '
    'set -- {tree}/benchmarks/gpu/older_vllm.py "$@";; esac\nexec {python} "$@"\n',
}
"""The programs of the environment."""
MODEL = """
import sys
from pathlib import Path
from ltrain_train.smollm2 import convert_gguf
convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def check(pieces: Path) -> dict[str, list[Path]]:
    """Return the pieces of each archive.

    Raises:
        SystemExit: when a piece is missing or damaged.
    """
    archives: dict[str, list[Path]] = {}
    for name, digest in json.loads((pieces / "pieces.json").read_text()).items():
        path = pieces / name
        if not path.exists():
            raise SystemExit(f"The piece {path} is missing: copy it there.")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise SystemExit(f"The piece {path} is damaged: copy it again.")
        archives.setdefault(name.rpartition(".")[0], []).append(path)
    return archives


def extract(archives: dict[str, list[Path]], site: Path, tree: Path) -> None:
    """Extract the archives at the same time."""
    running = []
    for name, pieces in archives.items():
        folder = tree if name.startswith("tree") else site
        folder.mkdir(parents=True, exist_ok=True)
        joined = subprocess.Popen(["cat", *map(str, pieces)], stdout=subprocess.PIPE)
        tar = ["tar", "xJ", "-C", str(folder)]
        running += [joined, subprocess.Popen(tar, stdin=joined.stdout)]
    if any([process.wait() for process in running]):
        raise SystemExit("An archive could not be extracted.")


def site_folders() -> Sequence[str]:
    """Return the folders with the packages of this Python."""
    return [each for each in sys.path if each.endswith(("site-packages", "dist-packages"))]


def main() -> None:
    environment, pieces = Path(sys.argv[1]).absolute(), Path(__file__).absolute().parent
    archives = check(pieces)
    venv.create(environment, symlinks=True)
    version = "python{}.{}".format(*sys.version_info)
    site, tree = environment / "lib" / version / "site-packages", environment / "tree"
    (site / "parent.pth").write_text("".join(f"{each}\n" for each in site_folders()))
    extract(archives, site, tree)
    python = environment / "bin" / "python"
    for name, text in PROGRAMS.items():
        path = environment / "bin" / name
        path.write_text(text.format(python=python, tree=tree))
        path.chmod(0o755)
    for gguf in tree.glob("*.gguf"):
        model = tree / ".ltrain" / "models" / "smollm2"
        subprocess.run([str(python), "-c", MODEL, str(gguf), str(model)], check=True)
    vllm = environment / "bin" / "vllm-python"
    print(f"cd {tree}\nexport LTRAIN_VLLM_PYTHON={vllm} VLLM_USE_FLASHINFER_SAMPLER=0")
    print(f"{python} -m benchmarks.gpu")


if __name__ == "__main__":
    main()
