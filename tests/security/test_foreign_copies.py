"""A backup from someone else restores checked rows and nothing else."""

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from polars.testing import assert_frame_equal
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.admin import backup, restore
from ltrain_collector.admin.archive import LIST, SUMS
from ltrain_collector.errors import BadBackup, StoreNewer
from ltrain_collector.store import Store

ROWS = "SELECT * FROM otel.spans ORDER BY TraceId, SpanId"
OBJECTS = (
    "SELECT database, name, engine FROM system.tables "
    "WHERE lower(database) NOT IN ('system', 'information_schema') ORDER BY database, name"
)


@pytest.fixture
def copied(folder: Store, request_of: Callable[..., bytes], tmp_path: Path) -> Iterator[Path]:
    """A backup of three spans; the store itself is emptied."""
    insert_otlp(folder, request_of((1, 1), (1, 2), (2, 1), ltrain__rollout__id="r"))
    backup(folder, tmp_path / "copy")
    empty(folder)
    yield tmp_path / "copy"


def empty(store: Store) -> None:
    for name in ("otel_traces", "otel_trace_executions"):
        store.command(f"TRUNCATE TABLE otel.{name}")


def refuse(store: Store, copy: Path, why: str, error: type[Exception] = BadBackup) -> None:
    """Assert that a restore fails with a one-line message and does not change the store."""
    before = store.query(OBJECTS)
    with pytest.raises(error, match=why) as refusal:
        restore(store, copy)
    assert "\n" not in str(refusal.value)
    assert_frame_equal(store.query(OBJECTS), before)
    assert store.query(ROWS).height == 0
    leftover = Path(store.name.removeprefix("chdb://"), "backups")
    assert list(leftover.iterdir()) == []


def test_a_backup_restores_no_views_functions_or_tables(
    folder: Store, request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    insert_otlp(folder, request_of((1, 1), (1, 2)))
    for sql in (
        "CREATE VIEW otel.passwd AS SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "CREATE OR REPLACE VIEW otel.evaluations AS "
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "CREATE TABLE otel.far (a String) ENGINE = URL('http://127.0.0.1:1/', 'CSV')",
        "CREATE MATERIALIZED VIEW otel.spy ENGINE = Memory AS SELECT * FROM otel.otel_traces",
        "CREATE DICTIONARY otel.words (a String) PRIMARY KEY a "
        "SOURCE(FILE(PATH '/etc/passwd' FORMAT 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
        "CREATE FUNCTION forged AS (x) -> x",
        "ALTER TABLE otel.otel_traces ADD COLUMN leak String DEFAULT file('/etc/passwd')",
        "ALTER TABLE otel.otel_traces MODIFY COMMENT 'forged'",
    ):
        folder.command(sql)
    backup(folder, tmp_path / "copy")
    folder.close()
    with open_empty_store(tmp_path / "clean") as clean:
        before = clean.query(OBJECTS)
        assert restore(clean, tmp_path / "copy") == 2
        assert_frame_equal(clean.query(OBJECTS), before)
        assert clean.query("SELECT count() AS n FROM otel.evaluations")["n"].item() == 0
        columns = "SELECT name FROM system.columns WHERE name IN ('leak', 'forged')"
        assert clean.query(columns).height == 0
        assert clean.query("SELECT name FROM system.functions WHERE name = 'forged'").height <= 1
        assert restored_writes(clean, request_of)


def restored_writes(store: Store, request_of: Callable[..., bytes]) -> bool:
    """Return whether the store still accepts spans."""
    insert_otlp(store, request_of((9, 9), ltrain__rollout__id="after"))
    found = store.query("SELECT RolloutId FROM otel.trace_executions")["RolloutId"].to_list()
    return "after" in found


@pytest.mark.parametrize("name", ["copy", pytest.param("copy.tar", marks=pytest.mark.nightly)])
def test_a_backup_restores_only_the_sender_import(
    folder: Store, request_of: Callable[..., bytes], tmp_path: Path, name: str
) -> None:
    body = request_of((1, 1), (1, 2), (2, 1), ltrain__rollout__id="r")
    forged = ExportTraceServiceRequest.FromString(body)
    (resource,) = forged.resource_spans
    sender = resource.resource.attributes.add(key="ltrain.sender")
    sender.value.string_value = "service"
    insert_otlp(folder, forged.SerializeToString())
    senders = "SELECT Sender, count() AS n FROM otel.spans GROUP BY 1"
    assert folder.query(senders).rows() == [("service", 3)]
    written = folder.query(ROWS)
    executions = folder.query("SELECT * FROM otel.trace_executions ORDER BY ALL")
    backup(folder, tmp_path / name)
    folder.close()
    with Store.open(f"chdb://{tmp_path}/clean") as clean:
        assert restore(clean, tmp_path / name) == 3
        assert clean.query(senders).rows() == [("import", 3)]
        assert_frame_equal(
            clean.query("SELECT * FROM otel.trace_executions ORDER BY ALL"), executions
        )
        sets = {"ResourceAttributes", "Sender", "IngestedAt"}
        assert_frame_equal(clean.query(ROWS).drop(sets), written.drop(sets))
    with Store.open(f"chdb://{tmp_path}/trusting") as trusting:
        assert restore(trusting, tmp_path / name, trusted=True) == 3
        assert trusting.query(senders).rows() == [("service", 3)]


def test_a_table_that_ltrain_did_not_make_is_refused(folder: Store, copied: Path) -> None:
    path = copied / "metadata" / "otel" / "otel_traces.sql"
    path.write_text(path.read_text().replace("ORDER BY (RunId", "ORDER BY (Attempt, RunId"))
    (copied / SUMS).unlink()
    wanted = len(path.read_bytes())
    text = (copied / LIST).read_text()
    name = "<name>metadata/otel/otel_traces.sql</name><size>"
    (copied / LIST).write_text(re.sub(f"({name})\\d+", f"\\g<1>{wanted}", text))
    refuse(folder, copied, "ltrain did not create its table otel.otel_traces")


def test_a_backup_of_a_newer_ltrain_is_refused(
    folder: Store, request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    insert_otlp(folder, request_of((1, 1)))
    folder.command("INSERT INTO otel.ltrain_migrations (step, version) VALUES ('99_later', 99)")
    backup(folder, tmp_path / "copy")
    folder.close()
    with open_empty_store(tmp_path / "clean") as clean:
        before = clean.query(OBJECTS)
        with pytest.raises(StoreNewer, match=r"99_later.*pip install --upgrade"):
            restore(clean, tmp_path / "copy")
        assert_frame_equal(clean.query(OBJECTS), before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("summed", [True, False], ids=["with sums", "without sums"])
def test_one_bit_that_flipped_is_found(
    folder: Store, copied: Path, tmp_path: Path, summed: bool
) -> None:
    files = sorted(
        path
        for path in copied.rglob("*")
        if path.is_file() and path.suffix != ".sql" and path.name not in (SUMS, LIST)
    )
    chosen = files if summed else [path for path in files if path.name == "data.bin"]
    assert len(chosen) >= (10 if summed else 3)
    for number, path in enumerate(chosen):
        other = tmp_path / f"flipped-{number}"
        shutil.copytree(copied, other)
        if not summed:
            (other / SUMS).unlink()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (other / path.relative_to(copied)).write_bytes(content)
        refuse(folder, other, "is damaged|is incomplete|could not be restored")
        shutil.rmtree(other)
    assert restore(folder, copied) == 3


def test_a_backup_without_digests_is_restored(folder: Store, copied: Path) -> None:
    (copied / SUMS).unlink()
    assert restore(folder, copied) == 3


def test_a_backup_with_references_outside_is_refused(folder: Store, copied: Path) -> None:
    text = (copied / LIST).read_text()
    (copied / SUMS).unlink()
    for add, why in (
        ("<base_backup>File('/')</base_backup>", "files outside"),
        ("<contents><file><name>../../x</name><size>1</size></file></contents>", "names '../../x'"),
        ("<contents><file><name>/etc/passwd</name><size>1</size></file></contents>", "names '/etc"),
        (
            "<contents><file><name>a</name><size>1</size><data_file>../../../etc/passwd</data_file>"
            "</file></contents>",
            "is refused",
        ),
        ("<contents><file><name>b</name><size>1</size></file></contents>", "it is missing"),
    ):
        (copied / LIST).write_text(text.replace("<contents>", add + "<contents>", 1))
        refuse(folder, copied, why)


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "extra"])
def test_a_folder_with_more_than_files_is_refused(folder: Store, copied: Path, kind: str) -> None:
    target = copied / "data" / "odd"
    if kind == "link":
        target.symlink_to("/etc/passwd")
    elif kind == "folder link":
        target.symlink_to("/etc", target_is_directory=True)
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target.write_text("more")
    refuse(folder, copied, "is not both in" if kind == "extra" else "neither a file nor a folder")


def test_a_tar_with_more_than_files_is_refused(folder: Store, copied: Path, tmp_path: Path) -> None:
    def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
        made = tarfile.TarInfo(name)
        made.type, made.linkname = kind, link
        return made

    odd = {
        "a file named": [
            member("../outside"),
            member("/absolute"),
            member("data/../../x"),
            member(LIST),
        ],
        "neither a file nor a folder": [
            member("data/link", tarfile.SYMTYPE, "/etc/passwd"),
            member("data/hard", tarfile.LNKTYPE, "/etc/passwd"),
            member("data/device", tarfile.CHRTYPE),
            member("data/pipe", tarfile.FIFOTYPE),
            member("data/sparse", tarfile.GNUTYPE_SPARSE),
        ],
    }
    for why, members in odd.items():
        for number, one in enumerate(members):
            path = tmp_path / f"{why[:4]}-{number}.tar"
            with tarfile.open(path, "w") as tar:
                tar.add(copied, ".")
                tar.addfile(one, io.BytesIO())
            refuse(folder, path, f"{why}|not a backup")
    assert not (tmp_path / "outside").exists()
    assert not Path("/absolute").exists()


def test_a_compressed_or_truncated_tar_is_refused(
    folder: Store, copied: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as tar:
        tar.add(copied, ".")
    refuse(folder, tmp_path / "packed.tar", "is not a backup")
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        tar.add(copied, ".")
    whole = (tmp_path / "whole.tar").read_bytes()
    for size in (0, 100, 700, len(whole) // 2):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        refuse(folder, tmp_path / "cut.tar", "is not a backup|is incomplete")
    assert restore(folder, tmp_path / "whole.tar") == 3


def test_a_device_is_not_a_backup(folder: Store, tmp_path: Path) -> None:
    refuse(folder, Path("/dev/zero"), "is not a backup")
    refuse(folder, tmp_path / "nothing", "is not a backup")


def test_the_command_says_it_in_one_sentence(copied: Path, tmp_path: Path) -> None:
    largest = max(copied.rglob("data.bin"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    argv = [ltrain_command(), "store", "restore", str(copied)]
    done = subprocess.run(
        [*argv, "--store", f"chdb://{tmp_path}/other"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
