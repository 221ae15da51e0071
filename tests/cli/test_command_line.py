"""The `ltrain` command run as from a user's shell."""

import errno
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from setup.reference import commands_of
from tests.fork_server import ltrain_command
from typer.core import TyperGroup
from typer.testing import CliRunner

from ltrain import cli
from ltrain.cli import app
from ltrain_instrument.installation import install_command
from ltrain_transforms.recipe import Rollout

LTRAIN = str(Path(sys.executable).with_name("ltrain"))
COMMANDS: dict[str, Any] = dict(commands_of(typer.main.get_command(app)))
ONLINE_KEYS = {
    *("tasks", "validation", "test", "tasks-per-wave", "seed"),
    *("remote", "domains", "target-score", "refill-tasks", "pin-version"),
    *("spare-tasks", "release-window", "validation-samples", "validation-temperature"),
    *("sandbox", "sandbox-command", "image", "workspace", "visible", "limits"),
    *("environment", "options", "held-out-options", "held-out-share", "max-tasks"),
}
"""Recipe keys of `[rollout]` that are no option of `ltrain rollout`: its argument, `--to`, and
keys of `ltrain run`."""


def ltrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LTRAIN_")}
    return subprocess.run(
        [ltrain_command(), *arguments],
        cwd=folder,
        env=environ | {"COLUMNS": "200", "LTRAIN_STORE": f"chdb://{folder}/store"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_names_the_commands(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "--help")
    assert done.returncode == 0
    for command in ("up", "serve", "rollout", "sql", "build", "run", "show", "demo"):
        assert f" {command} " in done.stdout


def test_version_is_the_installed_one(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"ltrain {metadata.version('ltrain')}\n")


@pytest.mark.parametrize("command", [(), ("sql",), ("store", "prune"), ("policy", "list")])
def test_h_prints_the_help(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = ltrain(tmp_path, *command, "-h")
    assert done.returncode == 0
    assert f"Usage: {' '.join(('ltrain', *command))} " in done.stdout
    assert done.stdout == ltrain(tmp_path, *command, "--help").stdout


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [LTRAIN],
        env={**os.environ, "_LTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "ltrain ro"}
        | {"COMP_CWORD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["rollout"], done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("trian",), ("up", "--prot", "1"), ("up", "--http-port", "many"), ("sql",)],
    ids=["command", "option", "value", "argument"],
)
def test_wrong_usage_is_status_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = ltrain(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ltrain")


def test_the_default_source_excludes_a_dataset(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "run", "absent.toml", "--from-clickhouse", "--from-dataset", "absent")
    assert done.returncode == 2
    assert "--from-clickhouse and --from-dataset exclude each other. Use one of" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_rendered_help_has_every_text_and_default(name: str) -> None:
    command = COMMANDS[name]
    shown = _without_spaces(CliRunner().invoke(app, [*name.split(), "-h"]).stdout)
    assert _without_spaces(command.help) in shown
    for each in command.params:
        text = _without_spaces(each.help)
        assert text in shown
        if each.default in (None, "", False) or each.required:
            continue
        default = _without_spaces(str(getattr(each.default, "value", each.default)))
        assert re.search(rf"{re.escape(text)}\[default:{re.escape(default)}[;\]]", shown)


def _without_spaces(text: str) -> str:
    """Return a text as it is in a help, whose lines also end after hyphens."""
    return "".join(text.split())


def test_rollout_options_are_the_recipe_keys() -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    options = {option for each in command.commands["rollout"].params for option in each.opts}
    keys = {key.replace("_", "-") for key in Rollout.model_fields}
    assert {f"--{key}" for key in keys - ONLINE_KEYS} <= options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "absent.toml"), "No recipe at absent.toml"),
        (("build", "typo.toml"), "Did you mean 'agents'?"),
        (("build", "broken.toml"), "broken.toml is not TOML"),
        (("rollout", "absent.jsonl", "--agent", "a:b"), "absent.jsonl"),
        (("serve", "absent", "--port", "0"), "absent"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_mistake_is_one_message_and_status_1(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "typo.toml").write_text('[[policy]]\nname = "p"\nagent = ["a"]\n')
    (tmp_path / "broken.toml").write_text("[policy")
    done = ltrain(tmp_path, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("ltrain: ") and message in done.stderr
    assert "Traceback" not in done.stderr


def test_absent_store_is_an_error(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "sql", "SELECT 1")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert str(tmp_path / "store") in done.stderr


def test_unknown_kind_of_store_is_an_error(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "sql", "SELECT 1", "--store", "oracle://x")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "oracle" in done.stderr and "chdb://" in done.stderr


def test_json_is_for_programs(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    done = ltrain(tmp_path, "sql", "SELECT 1 AS one", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"one": 1}]


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['polars'] = None; from ltrain.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sql", "SELECT 1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "ltrain: This command needs the extra `collect`: polars is not installed. "
        f"Install it with: {install_command('collect')}\n",
    )


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "log")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            _error(errno.EMFILE),
            "ltrain: Too many open files: 'log'. Raise the limit with `ulimit -n 65536`, ",
        ),
        (_error(errno.ENOSPC), "ltrain: No space left on device: 'log'. Free some space, and run"),
        (_error(errno.EROFS), "ltrain: Read-only file system: 'log'. Make the disk writable, and"),
        (
            OSError("Too many open files (os error 24): rows.parquet"),  # of Polars
            "ltrain: Too many open files (os error 24): rows.parquet. Raise the limit with `ulimit",
        ),
    ],
)
def test_a_refusal_of_the_system_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    sentence: str,
) -> None:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(sentence)
