"""Downloads from a local server that simulates the failures of real servers."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import dataset_writers as write
import pytest

from recaps.datasets import checksums, download, sources
from recaps.datasets.download import fetch
from recaps.datasets.sources import SourceFile
from recaps.errors import TryAgain, UserError

pytestmark = pytest.mark.unit

CONTENT = bytes(range(256)) * 4096  # 1 MiB: several blocks
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A server of a single content; it breaks the first `cuts` connections half-way."""

    content: bytes = CONTENT
    cuts: int = 0
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    wrong_range: bool = False
    announce: bool = True
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range", "")
        self.asked.append(wanted)
        if self.statuses:
            handler.send_response(self.statuses.pop(0))
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start >= len(self.content) > 0:
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.end_headers()
            return
        body = self.content[start:]
        handler.send_response(206 if start else 200)
        if start:
            told = 0 if self.wrong_range else start
            handler.send_header("Content-Range", f"bytes {told}-{len(self.content) - 1}/{len(self.content)}")
        if self.announce:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if self.cuts:
            self.cuts -= 1
            body = body[: len(body) // 2]
        handler.wfile.write(body)
        handler.close_connection = True


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    running: list[ThreadingHTTPServer] = []

    def start(**settings: Any) -> Server:
        server = Server(**settings)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(http)
        server.url = f"http://127.0.0.1:{http.server_port}/f.gz"
        return server

    yield start
    for http in running:
        http.shutdown()
        http.server_close()


@pytest.fixture(autouse=True)
def _quick_and_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "BACKOFF", 0.0)
    monkeypatch.delenv("RECAPS_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")


def source(*urls: str, **change: Any) -> SourceFile:
    settings: dict[str, Any] = {"size": len(CONTENT), "sha256": DIGEST, **change}
    return SourceFile("toys", "f.gz", urls, **settings)


def closed_url() -> str:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{port.getsockname()[1]}/f.gz"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_plain_download_with_progress(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int | None]] = []
    monkeypatch.setattr(download, "_reporter", lambda _, total: lambda done: seen.append((done, total)))
    path = fetch(source(serve().url), tmp_path / "toys")
    assert path == tmp_path / "toys" / "f.gz"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["f.gz"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_default_progress_is_about_every_tenth(
    serve: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_BLOCK", 1 << 14)
    fetch(source(serve().url), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert 9 <= len(lines) <= 12
    assert lines[-1] == "toys/f.gz: 1.0 of 1.0 MB (100%)"


@pytest.mark.parametrize("announce", [True, False])
def test_cut_connections_are_resumed(serve: Callable[..., Server], tmp_path: Path, announce: bool) -> None:
    server = serve(cuts=5, announce=announce)  # more cuts than attempts: each brings new bytes
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    starts = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for asked in server.asked]
    assert len(starts) == 6
    assert starts == sorted(set(starts))


def test_part_of_an_earlier_call_is_continued(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    (tmp_path / "f.gz.part").write_bytes(CONTENT[:1000])
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_whole_part_needs_no_network(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    (tmp_path / "f.gz.part").write_bytes(CONTENT)
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize(
    ("change", "asked"), [({"ranges": False}, ["bytes=1000-"]), ({"wrong_range": True}, ["bytes=1000-", ""])]
)
def test_server_that_cannot_resume_starts_over(
    serve: Callable[..., Server], tmp_path: Path, change: dict[str, bool], asked: list[str]
) -> None:
    server = serve(**change)
    (tmp_path / "f.gz.part").write_bytes(CONTENT[:1000])
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert server.asked == asked


def test_part_that_is_too_long_or_wrong_starts_over(serve: Callable[..., Server], tmp_path: Path) -> None:
    for part in (CONTENT + b"x", b"wrong" * 100):
        (tmp_path / "f.gz.part").write_bytes(part)
        assert fetch(source(serve().url), tmp_path).read_bytes() == CONTENT
        assert names(tmp_path) == ["f.gz"]
        (tmp_path / "f.gz").unlink()


def test_troubled_server_is_tried_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(statuses=[503, 429])
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_missing_at_one_address_is_got_from_the_next(serve: Callable[..., Server], tmp_path: Path) -> None:
    gone = serve(statuses=[404, 404])
    assert fetch(source(gone.url, closed_url(), serve().url), tmp_path).read_bytes() == CONTENT
    assert len(gone.asked) == 1


def test_wrong_content_everywhere(serve: Callable[..., Server], tmp_path: Path) -> None:
    wrong = b"y" * len(CONTENT)
    server = serve(content=wrong)
    with pytest.raises(UserError) as caught:
        fetch(source(server.url), tmp_path / "data" / "toys")
    message = str(caught.value)
    for part in ("toys/f.gz", DIGEST, hashlib.sha256(wrong).hexdigest(), server.url, "RECAPS_MIRROR"):
        assert part in message
    assert "\n" not in message
    assert names(tmp_path / "data" / "toys") == []


def test_wrong_length_is_refused_before_reading_it_if_announced(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(download, "_reporter", lambda *_: lambda _: pytest.fail("it is read"))
        with pytest.raises(UserError, match="expected 1048576 bytes, found 14, from http"):
            fetch(source(serve(content=b"<html>no</html>"[:14]).url), tmp_path)
    with pytest.raises(UserError, match=r"expected 1048576 bytes, found \d+, from http"):
        fetch(source(serve(content=CONTENT * 2, announce=False).url), tmp_path)
    assert names(tmp_path) == []


def test_no_network_and_no_mirror(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"\A[^\n]*no network and no mirror[^\n]*RECAPS_MIRROR to a folder that contains toys/f"
    ):
        fetch(source(closed_url()), tmp_path)
    with pytest.raises(UserError, match="no official address"):
        fetch(source(), tmp_path)
    with pytest.raises(UserError, match=r"[Nn]o such file"):
        fetch(source(), tmp_path, mirror=str(tmp_path / "absent"))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    (folder / "toys").mkdir(parents=True)
    (folder / "toys" / "f.gz").write_bytes(CONTENT)
    return folder


def test_mirror_comes_first(
    mirror: Path, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official, remote = serve(), serve()
    for given in (str(mirror), mirror.as_uri(), remote.url.removesuffix("/f.gz") + "/"):
        path = fetch(source(official.url), tmp_path / "out", mirror=given)
        assert path.read_bytes() == CONTENT
        path.unlink()
    monkeypatch.setenv("RECAPS_MIRROR", str(mirror))
    (tmp_path / "out" / "f.gz.part").write_bytes(b"of another source")
    assert fetch(source(), tmp_path / "out").read_bytes() == CONTENT
    assert official.asked == []
    assert remote.asked == [""]


def test_wrong_mirror_is_reported_and_the_official_address_is_used(
    mirror: Path, serve: Callable[..., Server], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (mirror / "toys" / "f.gz").write_bytes(CONTENT[::-1])
    with caplog.at_level(logging.WARNING):
        assert fetch(source(serve().url), tmp_path / "out", mirror=str(mirror)).read_bytes() == CONTENT
    assert str(mirror) in caplog.text
    assert f"SHA-256 expected {DIGEST}" in caplog.text


def test_existing_files(serve: Callable[..., Server], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    (tmp_path / "f.gz").write_bytes(CONTENT)
    fetch(source(server.url), tmp_path)
    assert server.asked == []
    (tmp_path / "f.gz").write_bytes(CONTENT[:-1] + b"x")
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert "renamed to f.gz.corrupt" in caplog.text
    assert names(tmp_path) == ["f.gz", "f.gz.corrupt"]
    (tmp_path / "f.gz").write_bytes(b"x")
    with pytest.raises(UserError, match="no network"):
        fetch(source(closed_url()), tmp_path)
    assert not (tmp_path / "f.gz").exists()


def test_full_disk(serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TryAgain, match=r"\A[^\n]*f\.gz: the disk is full; free some space and run again[^\n]*\Z"):
        fetch(source(serve().url), tmp_path)
    assert names(tmp_path) == ["f.gz.part"]


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot write \(Permission denied\)"):
        fetch(source(), tmp_path / "sealed")


def test_killed_half_way_leaves_only_the_part(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(done: int) -> None:
        if done > len(CONTENT) // 2:
            raise KeyboardInterrupt

    server = serve()
    with monkeypatch.context() as patch:
        patch.setattr(download, "_reporter", lambda *_: kill)
        with pytest.raises(KeyboardInterrupt):
            fetch(source(server.url), tmp_path)
    assert names(tmp_path) == ["f.gz.part"]
    assert fetch(source(server.url), tmp_path).read_bytes() == CONTENT
    assert server.asked[1] != ""
    assert names(tmp_path) == ["f.gz"]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_link_in_place_of_the_part_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "mirror" / "toys").mkdir(parents=True)
    (tmp_path / "mirror" / "toys" / "f.gz").write_bytes(CONTENT)
    mine = tmp_path / "mine"
    mine.write_text("a file of the user")
    (tmp_path / "out").mkdir()
    getattr((tmp_path / "out" / "f.gz.part"), link)(mine)
    fetched = fetch(source(), tmp_path / "out", mirror=str(tmp_path / "mirror"))
    assert mine.read_text() == "a file of the user"
    assert not fetched.is_symlink()
    assert fetched.read_bytes() == CONTENT


ROUNDS = 10


def fetch_many(mirror: Path, out: Path, together: Barrier) -> None:
    """Fetch a file to many folders, each at the same time as another process."""
    for n in range(ROUNDS):
        together.wait(60)
        assert fetch(source(), out / str(n), mirror=str(mirror)).read_bytes() == CONTENT


def test_two_processes_fetch_the_same_file_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirror, out = tmp_path / "mirror", tmp_path / "out"
    (mirror / "toys").mkdir(parents=True)
    (mirror / "toys" / "f.gz").write_bytes(CONTENT)
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(2)
    both = [spawn.Process(target=fetch_many, args=(mirror, out, together)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    assert all(names(out / str(n)) == ["f.gz"] for n in range(ROUNDS))
    assert capfd.readouterr().err.count("(100%)") == ROUNDS, "one of the two fetches, the other finds the file"


def test_a_valid_file_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the folder of the official files may be read-only."""
    (tmp_path / "f.gz").write_bytes(CONTENT)
    monkeypatch.setattr(download, "alone", None)
    assert fetch(source(), tmp_path) == tmp_path / "f.gz"


@pytest.fixture
def archives(tmp_path: Path) -> tuple[bytes, bytes]:
    """Two archives in affNIST's format."""
    made = [write.zipped(tmp_path / "z", {"a.mat": write.mat(write.affnist_fields(k))}).read_bytes() for k in (2, 3)]
    return made[0], made[1]


def test_trust_on_first_use(
    archives: tuple[bytes, bytes], serve: Callable[..., Server], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = archives
    folder = tmp_path / "out"
    path = fetch(source(serve(content=first).url, size=None, sha256=None), folder)
    digest = hashlib.sha256(first).hexdigest()
    assert (folder / "f.gz.sha256").read_text().split() == [digest, "f.gz"]
    assert "there is no official checksum" in caplog.text
    changed = source(serve(content=second).url, size=None, sha256=None)
    assert fetch(changed, folder).read_bytes() == first
    path.unlink()
    with pytest.raises(UserError, match=rf"expected {digest}, found {hashlib.sha256(second).hexdigest()}.*or delete"):
        fetch(changed, folder)
    path.write_bytes(second)
    with pytest.raises(UserError, match=f"expected {digest}"):
        checksums.require(changed, folder)


@pytest.mark.parametrize("form", ["zip", "parquet"])
def test_first_use_of_a_copy_of_smallnorb(archives: tuple[bytes, bytes], tmp_path: Path, form: str) -> None:
    mirror = tmp_path / f"smallnorb-{form}"
    mirror.mkdir()
    there = sources.file(mirror.name, f"train.{form}")
    unreachable = dataclasses.replace(there, urls=())
    for content, problem in ((b"<html>sorry</html>", "not a whole"), (archives[0][:-40], "not a whole")):
        (mirror / there.name).write_bytes(content)
        with pytest.raises(UserError, match=problem):
            fetch(unreachable, tmp_path / "out", str(tmp_path))
    whole = archives[0] if form == "zip" else b"PAR1 and so on PAR1"
    (mirror / there.name).write_bytes(whole)
    assert fetch(unreachable, tmp_path / "out", str(tmp_path)).read_bytes() == whole


def test_first_use_needs_the_right_format(serve: Callable[..., Server], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a whole zip archive"):
        fetch(source(serve(content=b"<html>sorry</html>").url, size=None, sha256=None), tmp_path)
    assert names(tmp_path) == []


def test_whole_part_of_unknown_size(
    archives: tuple[bytes, bytes], serve: Callable[..., Server], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "f.gz.part").write_bytes(archives[0])
    server = serve(content=archives[0])
    assert fetch(source(server.url, size=None, sha256=None), folder).read_bytes() == archives[0]
    assert len(server.asked) == 1


def test_broken_sidecar(tmp_path: Path) -> None:
    (tmp_path / "f.gz.sha256").write_text("nonsense")
    with pytest.raises(UserError, match="not a SHA-256 digest"):
        checksums.expected_digest(source(sha256=None), tmp_path)
