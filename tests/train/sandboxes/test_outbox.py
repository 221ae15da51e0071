"""What an attempt hands out is read without trust in it."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.sandboxes.outbox import Outbox


def unpacked(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], limit: int = 1000) -> Outbox:
    """Write a tar file of these members and unpack it into `out`."""
    with tarfile.open(path / "outbox", "w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (path / "out").mkdir()
    outbox = Outbox(path / "outbox", limit)
    outbox.unpack({"workspace": path / "out"})
    return outbox


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.SYMTYPE, linkname=target), b""


def test_files_folders_and_inner_links_are_kept(tmp_path: Path) -> None:
    odd = "workspace/a b\n'\"\udcff"
    outbox = unpacked(
        tmp_path,
        [
            (member("workspace/d", tarfile.DIRTYPE), b""),
            (member("workspace/d/run", mode=0o4777), b"x"),
            (member(odd), b"odd"),
            link("workspace/d/up", "../d/run"),
            (member("omitted"), json.dumps(["workspace/pipe: a fifo"]).encode()),
        ],
    )
    out = tmp_path / "out"
    assert outbox.omitted == ["workspace/pipe: a fifo"]
    assert (out / "d" / "up").read_text() == "x"
    assert (out / "d" / "run").stat().st_mode & 0o7777 == 0o700
    assert (out / odd.partition("/")[2]).read_text() == "odd"


@pytest.mark.parametrize(
    "entry",
    [
        (member("workspace/../evil"), b"x"),
        (member("/evil"), b"x"),
        (member("workspace//evil"), b"x"),
        (member("workspace/.git/config"), b"x"),
        (member("workspace/sub/.git", tarfile.SYMTYPE, linkname="a"), b""),
        link("workspace/l", "/etc/passwd"),
        link("workspace/l", "../out"),
        link("workspace/l", "a/../../x"),
        (member("workspace/hard", tarfile.LNKTYPE, linkname="/etc/passwd"), b""),
        (member("workspace/pipe", tarfile.FIFOTYPE), b""),
        (member("workspace/null", tarfile.CHRTYPE), b""),
    ],
)
def test_an_entry_that_leads_out_is_named_and_not_kept(tmp_path: Path, entry: Any) -> None:
    outbox = unpacked(tmp_path, [entry, (member("workspace/good"), b"good")])
    assert len(outbox.omitted) == 1
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["good"]
    assert not (tmp_path / "evil").exists()


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    entries = [link("workspace/l", "d"), (member("workspace/l/file"), b"x")]
    unpacked(tmp_path, entries)
    assert (tmp_path / "out" / "l" / "file").read_text() == "x"
    assert not (tmp_path / "out" / "l").is_symlink()


@pytest.mark.parametrize("content", [b"", b"started", b"no tar file" * 100])
def test_an_outbox_that_is_no_archive_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "outbox").write_bytes(content)
    outbox = Outbox(tmp_path / "outbox", 1000)
    outbox.unpack({"workspace": tmp_path})
    assert len(outbox.omitted) == 1


def test_more_bytes_than_the_limit_are_not_written(tmp_path: Path) -> None:
    outbox = unpacked(tmp_path, [(member("workspace/big"), bytes(2 << 20))])
    assert outbox.omitted == ["the rest: too large"]
    assert not (tmp_path / "out" / "big").exists()
