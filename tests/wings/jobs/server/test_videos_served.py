"""``/v1/videos`` of a real server, by OpenAI's client as it is; its videos, by PyAV and plain PyTorch."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from moving_model import FAILS, FPS, FRAMES, SIZE, WAITS, frames_of, write_folder
from pages import all_blocks
from PIL import Image
from scene_clients import client, made, wait_for
from serving import served

from vllm_mmout.params import OutputParams

av = pytest.importorskip("av", reason="the oracle is PyAV")
openai = pytest.importorskip("openai", reason="the client is OpenAI's")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:The Sora API is scheduled:DeprecationWarning"),
]
PROMPT = "a river that rises by night"


@pytest.fixture(scope="module")
def video_server(tmp_path_factory):
    """A server of `moving_model.MovingNet`."""
    folder = write_folder(tmp_path_factory.mktemp("moving") / "moving")
    with served(folder, "--served-model-name", "moving") as server:
        yield server, Path(folder)


@pytest.fixture(scope="module")
def videos(video_server):
    """What OpenAI's client has for videos."""
    with openai.OpenAI(base_url=f"{video_server[0].url}/v1", api_key="none", max_retries=0) as asking:
        yield asking.videos


@pytest.fixture(scope="module")
def asking(video_server):
    """A client without anything of OpenAI's."""
    with client(base_url=video_server[0].url) as asking:
        yield asking


def decoded(content):
    """The frames of a file and its stream."""
    with av.open(io.BytesIO(content)) as container:
        (stream,) = container.streams
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
        return frames, stream


def picture(colour=(200, 40, 90)):
    """A PNG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (24, 24), colour).save(buffer, "png")
    return buffer.getvalue()


def ended(asking, job):
    """A job when it has ended."""
    path = f"/v1/videos/{job['id']}"
    return wait_for(
        lambda: (found := made(asking.get(path)))["status"] in {"completed", "failed"} and found, "the job never ended"
    )


def test_a_video_is_made_by_openais_client(videos):
    """Created, looked at until it is there, listed, fetched whole and as a picture, and deleted."""
    video = videos.create_and_poll(
        prompt=PROMPT, model="moving", seconds="1", size="96x64", extra_body={"output_format": "mp4", "seed": 7}
    )
    assert (video.status, video.error, video.object, video.model) == ("completed", None, "video", "moving")
    assert (video.seconds, video.size, video.progress, video.prompt) == ("1", "96x64", 100, PROMPT)
    assert video.created_at <= video.completed_at < video.expires_at

    expected = frames_of(OutputParams(seed=7), prompt=PROMPT, num_frames=FPS, height=64, width=96)
    fetched = videos.download_content(video.id)
    found, stream = decoded(fetched.content)
    assert fetched.response.headers["content-type"] == "video/mp4"
    assert (stream.codec_context.name, stream.average_rate, stream.frames) == ("h264", FPS, FPS)
    assert np.abs(found.astype(int) - expected).mean() < 3
    assert found.shape == expected.shape

    thumbnail = videos.download_content(video.id, variant="thumbnail")
    with Image.open(io.BytesIO(thumbnail.content)) as first:
        np.testing.assert_array_equal(np.asarray(first), expected[0])
    with pytest.raises(openai.BadRequestError, match="does not make spritesheets"):
        videos.download_content(video.id, variant="spritesheet")

    assert [one.id for one in videos.list(limit=100)] == [video.id]
    assert videos.retrieve(video.id) == video
    gone = videos.delete(video.id)
    assert (gone.id, gone.deleted, gone.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError, match="ask for the video again"):
        videos.retrieve(video.id)


def test_the_snippet_of_the_page_runs(video_server, videos, tmp_path, monkeypatch):
    """What docs/jobs.md shows, as it stands there."""
    (snippet,) = [block.text for block in all_blocks("python") if block.page == "jobs.md"]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(snippet.replace("http://localhost:8000", video_server[0].url), names)  # noqa: S102 - the snippet is our own
    names["client"].close()
    assert decoded(Path("river.mp4").read_bytes())[0].shape == (FPS, 64, 96, 3)
    videos.delete(names["video"].id)


def test_what_is_not_asked_for_is_the_models(videos):
    """Size and length are its own, and said when the video is there."""
    video = videos.create(prompt=PROMPT)
    assert (video.size, video.seconds) == ("auto", "auto")
    video = videos.poll(video.id, poll_interval_ms=50)
    assert (video.size, video.seconds) == (f"{SIZE[1]}x{SIZE[0]}", f"{FRAMES / FPS:g}")
    found, _ = decoded(videos.download_content(video.id).content)
    assert found.shape == (FRAMES, *SIZE, 3)
    videos.delete(video.id)


def test_a_video_begins_with_an_image(videos, asking):
    """As a file of a form, and as a data URL in JSON, which is the same video; without a text too."""
    content = picture()
    video = videos.create_and_poll(prompt=PROMPT, input_reference=("first.png", content, "image/png"))
    assert video.status == "completed", video.error
    found, _ = decoded(videos.download_content(video.id).content)
    expected = frames_of(image=io.BytesIO(content))
    assert np.abs(found.astype(int) - expected).mean() < 3
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    for reference in (url, {"image_url": url}):
        job = ended(asking, made(asking.post("/v1/videos", json={"input_reference": reference})))
        assert job["status"] == "completed", job
        np.testing.assert_array_equal(decoded(asking.get(f"/v1/videos/{job['id']}/content").content)[0], found)
        made(asking.delete(f"/v1/videos/{job['id']}"))
    videos.delete(video.id)


def test_other_formats_and_parts_of_a_file_are_fetched(asking):
    """WebP comes as such, and a stretch of it by Range."""
    job = made(asking.post("/v1/videos", json={"prompt": PROMPT, "output_format": "webp", "output_compression": 90}))
    path = f"/v1/videos/{ended(asking, job)['id']}"
    whole = asking.get(f"{path}/content")
    assert whole.headers["content-type"] == "image/webp"
    with Image.open(io.BytesIO(whole.content)) as animation:
        assert (animation.n_frames, animation.size) == (FRAMES, (SIZE[1], SIZE[0]))
    part = asking.get(f"{path}/content", headers={"Range": "bytes=5-20"})
    assert (part.status_code, part.content) == (206, whole.content[5:21])
    made(asking.delete(path))


def test_a_job_fails_with_what_its_request_would_have_failed_with(videos):
    """The error is the client's to read, and there is nothing to fetch."""
    video = videos.create_and_poll(prompt=FAILS, poll_interval_ms=50)
    assert video.status == "failed"
    assert (video.error.code, video.error.message) == (
        "BadRequestError",
        "this text cannot be filmed; write another one",
    )
    with pytest.raises(openai.ConflictError, match="cannot be filmed"):
        videos.download_content(video.id)
    videos.delete(video.id)


def test_a_job_that_runs_is_cancelled(video_server, videos, asking):
    """There is nothing to fetch before it is done, and nothing is left of one that is deleted."""
    video = videos.create(prompt=WAITS)
    with pytest.raises(openai.ConflictError, match="ask again when it is done"):
        videos.download_content(video.id)
    wait_for(lambda: videos.retrieve(video.id).status == "in_progress", "the job never began")
    answer = asking.get(f"/v1/videos/{video.id}")
    assert answer.headers["openai-poll-after-ms"] == "500"
    videos.delete(video.id)
    (video_server[1] / WAITS).touch()
    assert list(videos.list()) == []


def test_pages_of_videos_have_no_scenes_in_them(asking):
    """And those of scenes no videos; each kind of job has its own ids."""
    jobs = [made(asking.post("/v1/videos", json={"prompt": text})) for text in ("one", "two", "three")]
    scene = made(asking.post("/v1/scenes", files={"image": ("first.png", picture())}, data={"output_format": "npz"}))
    first = made(asking.get("/v1/videos", params={"limit": 2, "order": "asc"}))
    assert ([one["id"] for one in first["data"]], first["has_more"]) == ([one["id"] for one in jobs[:2]], True)
    after = made(asking.get("/v1/videos", params={"after": first["last_id"], "order": "asc"}))
    assert ([one["id"] for one in after["data"]], after["has_more"]) == ([jobs[2]["id"]], False)
    assert [one["id"] for one in made(asking.get("/v1/scenes"))["data"]] == [scene["id"]]
    assert asking.get(f"/v1/scenes/{jobs[0]['id']}").status_code == 404
    assert asking.get(f"/v1/videos/{scene['id']}").status_code == 404
    for path in (f"/v1/scenes/{scene['id']}", *(f"/v1/videos/{job['id']}" for job in jobs)):
        made(asking.delete(path))


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "prompt is missing"),
        ({"prompt": "x", "seconds": "long"}, "seconds", "seconds must be a number above 0"),
        ({"prompt": "x", "seconds": 0}, "seconds", "seconds must be a number above 0"),
        ({"prompt": "x", "seconds": 61}, "seconds", "at most 60 s (--mmout-max-seconds)"),
        ({"prompt": "x", "size": "4096x4096"}, "size", "2097152 (--mmout-max-made-pixels)"),
        ({"prompt": "x", "size": "large"}, "size", 'size must be "auto" or WIDTHxHEIGHT'),
        ({"prompt": "x", "output_format": "png"}, "output_format", "it can be webp, npz, mp4, gif"),
        ({"prompt": "x", "model": "sora-2"}, "model", "'sora-2' is not served here"),
        ({"prompt": "x", "stream": True}, "stream", "fetch it by its id"),
        ({"prompt": "x", "processor": "video"}, "processor", "a video is the only result of its job"),
        ({"prompt": "x", "input_reference": {"file_id": "file-1"}}, "input_reference", "has no image"),
        ({"prompt": "x", "input_reference": 5}, "input_reference", "must be a URL or data URL"),
        ({"prompt": "x", "input_reference": "/etc/passwd"}, None, "is nothing that this server reads"),
        ({"prompt": "x", "num_inference_steps": 5}, "num_inference_steps", "MovingNet does not take it"),
        ({"prompt": "x", "voice": "tara"}, "voice", "unknown field 'voice'"),
    ],
)
def test_what_is_wrong_is_refused_before_there_is_a_job(asking, body, param, says):
    """An error names the field, and what to do."""
    answer = asking.post("/v1/videos", json=body)
    error = answer.json()["error"]
    assert answer.status_code in {400, 404}, error
    assert says in error["message"]
    assert param in {error["param"], None}
    assert made(asking.get("/v1/videos"))["data"] == []


def test_a_server_of_another_model_gives_no_videos(water_server):
    """It says what its model gives, whichever of the routes is asked."""
    with client(base_url=water_server.url) as asking:
        for answer in (
            asking.post("/v1/videos", json={"prompt": "x"}),
            asking.get("/v1/videos"),
            asking.get("/v1/videos/video_x/content"),
        ):
            assert answer.status_code == 400
            assert "answers with raster" in answer.json()["error"]["message"]
