"""Archives: reading members, and refusing archives with unsafe members."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from recaps.datasets import archive
from recaps.errors import UserError

pytestmark = pytest.mark.unit

UNSAFE_NAMES = ["/etc/passwd", "../outside", "a/../../outside", "a\\..\\..\\outside", "C:/windows"]


def tar(path: Path, *extra: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for info in (tarfile.TarInfo("good"), *extra):
            content = b"x" * 10
            info.size = 10 if info.isreg() else 0
            out.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_path_traversal_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="unsafe member"):
        list(archive.members(tar(tmp_path / "a.tar.gz", tarfile.TarInfo(name)), lambda _: True))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("good", b"x")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        out.writestr(info, b"x")
    with pytest.raises(UserError, match="unsafe member"):
        list(archive.members(tmp_path / "a.zip", {"good"}.__contains__))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused_in_tar(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("odd")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(UserError, match="a link or a device"):
        list(archive.members(tar(tmp_path / "a.tar.gz", info), lambda _: False))


def test_links_are_refused_in_zip(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("odd")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr(info, "/etc/passwd")
    with pytest.raises(UserError, match="a link"):
        list(archive.members(tmp_path / "a.zip", lambda _: False))


def test_members_and_listing(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", tarfile.TarInfo("b/c"))
    assert archive.listing(path) == ["good", "b/c"]
    assert list(archive.members(path, {"b/c"}.__contains__)) == [("b/c", b"x" * 10)]


def test_damaged_member_of_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("good", b"0123456789")
    content = (tmp_path / "a.zip").read_bytes().replace(b"0123456789", b"0123456780")
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match="truncated or damaged"):
        list(archive.members(tmp_path / "a.zip", lambda _: True))
