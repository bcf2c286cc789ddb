"""Forms with files, read by a parser that others have made."""

from __future__ import annotations

import os
import tracemalloc

import pytest
from python_multipart import create_form_parser

from vllm_mmout.errors import InputError
from vllm_mmout.wings.jobs.client.form import MultipartForm


def parsed(body, form):
    """Names, file names and contents of a body, in its order."""
    found = []

    def file(part):
        part.file_object.seek(0)
        found.append((part.field_name, part.file_name, part.file_object.read()))

    parser = create_form_parser(
        {"Content-Type": form.content_type.encode()},
        lambda part: found.append((part.field_name, None, part.value)),
        file,
    )
    parser.write(body)
    parser.finalize()
    return found


def body_of(form):
    return b"".join(form.body(lambda _: None))


@pytest.mark.parametrize(
    "name", ["scene.tif", 'a "b".tif', "a;b=c.tif", "back\\slash.tif", "Überflutung 2024.tif", "100%22.tif"]
)
def test_names_of_files_arrive(tmp_path, name):
    """Whatever a file is called, the parser finds that name and the file's bytes."""
    path = tmp_path / name
    path.write_bytes(b"\r\n--\r\nbytes\x00\xff\r\n")
    form = MultipartForm([("bands", "1,2"), ("user", "ä\r\n")], [("image", path), ("image", path)])
    body = body_of(form)
    image = (b"image", name.encode(), path.read_bytes())
    assert parsed(body, form) == [(b"bands", None, b"1,2"), (b"user", None, "ä\r\n".encode()), image, image]
    assert len(body) == form.size


@pytest.mark.parametrize("name", [b"new\nline\r.tif", b"latin \xe9.tif"])
def test_names_that_no_header_can_hold(tmp_path, name):
    """A name with line ends, or in no encoding, still makes one whole form."""
    path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - of bytes there are no paths
    with open(path, "wb") as file:  # noqa: PTH123 - likewise
        file.write(b"pixels")
    form = MultipartForm([], [("image", tmp_path / os.fsdecode(name))])
    ((field, shown, content),) = parsed(body_of(form), form)
    assert (field, content) == (b"image", b"pixels")
    assert shown == name.translate(bytes.maketrans(b"\n\r\xe9", b"   "))


def test_a_form_can_be_sent_again(tmp_path):
    """Each body is the same, and each tells how much of it was taken, up to all."""
    path = tmp_path / "scene.tif"
    path.write_bytes(os.urandom(3 << 20))
    form = MultipartForm([("tile", "64")], [("image", path)])
    told = [], []
    one, other = (b"".join(form.body(counts.append)) for counts in told)
    assert one == other
    assert told[0] == told[1] == sorted(told[0])
    assert told[0][-1] == form.size
    assert len(told[0]) > 10


@pytest.mark.heavy
def test_a_form_is_never_whole_in_memory(tmp_path):
    """Of a file of 256 MiB no more than some pieces are there at once."""
    path = tmp_path / "large.tif"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    form = MultipartForm([], [("image", path)])
    tracemalloc.start()
    try:
        assert sum(map(len, form.body(lambda _: None))) == form.size
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_grows_is_sent_as_long_as_it_was(tmp_path):
    """The length that was announced holds."""
    path = tmp_path / "scene.tif"
    path.write_bytes(b"first")
    form = MultipartForm([], [("image", path)])
    path.write_bytes(b"first and more")
    body = body_of(form)
    assert len(body) == form.size
    assert parsed(body, form) == [(b"image", b"scene.tif", b"first")]


def test_a_file_that_shrinks_or_goes_is_said(tmp_path):
    """No body is filled up with something else."""
    path = tmp_path / "scene.tif"
    path.write_bytes(b"first")
    form = MultipartForm([], [("image", path)])
    path.write_bytes(b"fir")
    with pytest.raises(InputError, match=r"scene\.tif has become 2 bytes shorter while it was sent"):
        body_of(form)
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .*scene\.tif: No such file"):
        body_of(form)


def test_what_is_no_file_is_refused(tmp_path):
    """A pipe has no length that could be announced."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        MultipartForm([], [("image", tmp_path / "pipe")])
    with pytest.raises(InputError, match="cannot read"):
        MultipartForm([], [("image", tmp_path / "nul\0l")])


def test_the_empty_form():
    """Without fields and files there is still an end."""
    form = MultipartForm([])
    assert parsed(body_of(form), form) == []
    assert len(body_of(form)) == form.size
