"""What a job keeps of its request until its turn comes: checked as far as that goes, and closed with the job."""

from __future__ import annotations

import base64
import io

import pytest
from http_server import a_running_server, a_server, no_proxies  # noqa: F401 - fixtures
from PIL import Image

from vllm_mmout.errors import InputError
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.wings.jobs.server.job import keep_inputs

pytestmark = [pytest.mark.engine]  # sources know vLLM's switches


def png(width=5, height=4):
    """A picture."""
    made = io.BytesIO()
    Image.new("RGB", (width, height), "blue").save(made, "PNG")
    return made.getvalue()


def upload(data, name="scene.png"):
    """A file that was sent."""
    return Upload(name, io.BytesIO(data), len(data))


def data_url(data, more=""):
    """A file as text."""
    return f"data:image/png{more};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def sources(tmp_path):
    """Those of a server that reads files of one folder."""
    (tmp_path / "local").mkdir()
    return Sources(ServingOptions(max_pixels=100), local_path=str(tmp_path / "local"), domains=["127.0.0.1"])


def test_one_file(sources):
    """It is kept as it came, from its start, until the job closes it."""
    sent = upload(png())
    inputs = keep_inputs([sent], sources)
    assert inputs.data is sent
    assert (inputs.name, inputs.nbytes) == ("scene.png", len(png()))
    for _ in range(2):
        with sources.opened(inputs.data) as opened:
            assert opened.read() == png()
    inputs.held.close()
    assert sent.file.closed


def test_several_files(sources):
    """They stay in their order; the first one gives the name, all of them count."""
    sent = [upload(png(), f"B{number}.png") for number in range(3)]
    inputs = keep_inputs(sent, sources)
    assert inputs.data == sent
    assert (inputs.name, inputs.nbytes) == ("B0.png", 3 * len(png()))
    inputs.held.close()
    assert all(one.file.closed for one in sent)


def test_data_urls(sources):
    """They are decoded once, and the text is not kept; what it says is its name is that."""
    inputs = keep_inputs([data_url(png(), ";name=a%20lake.png"), data_url(png(3, 3))], sources)
    assert inputs.data[0].name == inputs.name == "a lake.png"
    assert inputs.nbytes == len(png()) + len(png(3, 3))
    with sources.opened(inputs.data) as opened:
        assert [one.read() for one in opened] == [png(), png(3, 3)]
    inputs.held.close()
    for one in inputs.data:
        assert one.file.closed


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://127.0.0.1/a/b%20c.tif?key=secret", "b c.tif"),
        ("HTTP://user:secret@127.0.0.1/", "scene"),
        ("https://127.0.0.1/..%2f..%2fpasswd", "passwd"),
        ("https://127.0.0.1/%0a%1b.tif", "__.tif"),
        ("https://127.0.0.1:x/a.tif", "a.tif"),
        ("https://[/a.tif", "scene"),
        ("https://127.0.0.1/" + "a" * 5000, "a" * 200),
    ],
)
def test_addresses(sources, address, name):
    """They are read by the job, not before; the name has no folder, no secret, and nothing that cannot be printed."""
    inputs = keep_inputs([address], sources)
    assert (inputs.data, inputs.name, inputs.nbytes) == (address, name, 0)
    inputs.held.close()


def test_an_address_is_not_asked(sources, server):
    """Nobody connects while a job is made."""
    keep_inputs([server.serve("/scene.png", png())], sources).held.close()
    assert server.asked == []


def test_files_of_the_server(sources, tmp_path):
    """Only those of its folder are taken, and only if they are images; nothing of them is open while the job waits."""
    (tmp_path / "local" / "scene.png").write_bytes(png())
    (tmp_path / "local" / "notes.png").write_bytes(b"notes")
    (tmp_path / "other.png").write_bytes(png())
    inputs = keep_inputs([(tmp_path / "local" / "scene.png").as_uri()], sources)
    assert (inputs.name, inputs.nbytes) == ("scene.png", 0)
    with sources.opened(inputs.data) as opened:
        assert opened.read() == png()
    for name in ("local/notes.png", "local/none.png", "other.png", "local/../other.png"):
        with pytest.raises(InputError):
            keep_inputs([f"file://{tmp_path}/{name}"], sources)


@pytest.mark.parametrize("text", ["scene.tif", "/etc/passwd", "ftp://127.0.0.1/a.tif", "", "localhost/a.tif"])
def test_what_is_no_address(sources, text):
    """It is refused at once, with what can be sent instead."""
    with pytest.raises(InputError, match="send the file itself"):
        keep_inputs([text], sources)


@pytest.mark.parametrize(("bad", "words"), [(b"no image", "image"), (png(11, 10), "--mmout-max-pixels")])
@pytest.mark.parametrize("way", [upload, data_url])
def test_what_is_no_image_or_too_large(sources, bad, words, way):
    """It is refused when it comes, wherever it stands."""
    with pytest.raises(InputError, match=words):
        keep_inputs([upload(png()), way(bad)], sources)


def test_too_many_files(sources):
    """No more are opened at once than for any other request."""
    with pytest.raises(InputError, match="more than 128 files"):
        keep_inputs([upload(png()) for _ in range(129)], sources)
