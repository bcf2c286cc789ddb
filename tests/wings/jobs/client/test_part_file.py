"""Downloads that are not whole yet."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import SaveError
from vllm_mmout.wings.jobs.client.download import PartFile


def test_bytes_are_gone_on_with(tmp_path):
    """What was written for one source is there again, with its ETag, and grows."""
    with PartFile(tmp_path / "a.tif", "http://h/1") as part:
        assert (part.size, part.etag) == (0, None)
        part.begin('"e"')
        part.write(b"one ")
    with PartFile(tmp_path / "a.tif", "http://h/1") as part:
        assert (part.size, part.etag) == (4, '"e"')
        part.write(b"two")
        part.cut(6)
        part.finish()
        assert part.path.read_bytes() == b"one tw"
    part.forget()
    assert [file.name for file in tmp_path.iterdir()] == ["a.tif.part"]


@pytest.mark.parametrize("etag", [None, 'W/"e"'])
def test_bytes_without_a_strong_etag_are_of_no_use_later(tmp_path, etag):
    """They could be joined with those of another result."""
    with PartFile(tmp_path / "a.tif", "http://h/1") as part:
        part.begin('"older"')
        part.begin(etag)
        part.write(b"one")
    with PartFile(tmp_path / "a.tif", "http://h/1") as part:
        assert part.etag is None


def test_bytes_of_another_source_are_of_no_use(tmp_path):
    """Another job's bytes lie there under the same name."""
    with PartFile(tmp_path / "a.tif", "http://h/1") as part:
        part.begin('"e"')
        part.write(b"one")
    with PartFile(tmp_path / "a.tif", "http://h/2") as part:
        assert part.etag is None
        part.begin('"e"')
        assert part.size == 0
        assert part.path.read_bytes() == b""


def test_a_file_that_got_its_name_meanwhile_is_not_written(tmp_path, monkeypatch):
    """Between opening and locking another process may have finished the download."""
    import fcntl

    locked = fcntl.flock

    def late(file, how):
        (tmp_path / "a.tif.part").rename(tmp_path / "a.tif")
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(SaveError, match=r"another process is writing .*a\.tif\.part"):
        PartFile(tmp_path / "a.tif", "http://h/1")


def test_what_cannot_be_written_is_said(tmp_path):
    """The error names the file and the reason."""
    with pytest.raises(SaveError, match=r"cannot write .*no/a\.tif\.part: No such file or directory"):
        PartFile(tmp_path / "no" / "a.tif", "http://h/1")


def test_a_full_disk_is_said(tmp_path):
    """The download can go on when there is room."""
    (tmp_path / "a.tif.part").symlink_to("/dev/full")
    part = PartFile(tmp_path / "a.tif", "http://h/1")
    part.write(b"x")
    with pytest.raises(SaveError, match="No space left on device; make room, then continue with --resume"):
        part.finish()
    with pytest.raises(SaveError, match="No space left"):
        part.__exit__()
