"""The command ``vllm-mmout submit`` against a server of jobs without an engine."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from http_server import open_sockets
from scene_jobs import ID, RESULT, RUNNING, error
from scene_jobs import a_server_of_jobs as a_server_of_jobs  # noqa: PLC0414 - a fixture

from vllm_mmout.cli import main

MORE = {"MMOUT_FETCH_RETRIES": "2"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with one file to send, in an environment without keys, whose pauses take no time."""
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("vllm_mmout.wings.jobs.client.jobs._FIRST_PAUSE", 0.001)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scene.tif").write_bytes(b"pixels of the scene")
    return tmp_path


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that were waited, none of which pass."""
    found = []
    monkeypatch.setattr("vllm_mmout.wings.jobs.client.session.time.sleep", found.append)
    return found


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def submit(jobs, *arguments):
    """The exit status of the command."""
    return main(["submit", *arguments, "--server", jobs.address])


@pytest.mark.heavy
def test_a_file_becomes_a_result(jobs, place, capsys):
    """The file is sent as it is, the result written as it came, its path printed, and the job removed."""
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert names(place) == ["mask.png", "scene.tif"]
    assert jobs.form() == [("output_format", None, b"png"), ("image", "scene.tif", b"pixels of the scene")]
    assert [f"{asked.method} {asked.path}" for asked in jobs.asked] == [
        "GET /v1/scenes",
        "POST /v1/scenes",
        f"GET /v1/scenes/{ID}",
        f"GET /v1/scenes/{ID}/content",
        f"DELETE /v1/scenes/{ID}",
    ]
    printed = capsys.readouterr()
    assert printed.out == "mask.png\n"
    assert printed.err == (
        f"job {ID}; to resume it later: vllm-mmout submit --resume {ID} --server {jobs.address} -o mask.png\n"
    )
    assert all("authorization" not in asked.headers for asked in jobs.asked)


def test_several_files_and_options_are_one_form(jobs, place):
    """Files are sent in their order, options as fields in the words of a form, defaults not at all."""
    (place / 'swir "1".tif').write_bytes(b"second")
    options = ["--bands", "2,B3", "--nodata", "nan", "--window", "0,1,20,30", "--scale", "0.1", "--tile", "64"]
    picks = ["--processor", "segmentation,tensor", "--model", "flood", "--overlap", "0"]
    assert submit(jobs, "scene.tif", 'swir "1".tif', "-o", "m.tiff", *options, *picks, "--no-wait") == 0
    *fields, one, two = jobs.form()
    assert {name: text.decode() for name, _, text in fields} == {
        "bands": "2,B3",
        "nodata": "nan",
        "window": "0,1,20,30",
        "scale": "0.1",
        "tile": "64",
        "processor": "segmentation,tensor",
        "model": "flood",
        "output_format": "tiff",
    }
    assert (one, two) == (("image", "scene.tif", b"pixels of the scene"), ("image", 'swir "1".tif', b"second"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "address",
    ["https://host/scene.tif", "s3://bucket/scene.tif", "file:///data/scene.tif", "data:image/png;base64,AA=="],
)
def test_an_address_is_sent_as_text(jobs, address):
    """What the server reads itself is a field of the form, and no file here."""
    assert submit(jobs, address, "-o", "mask.png") == 0
    assert jobs.form() == [("image", None, address.encode()), ("output_format", None, b"png")]


@pytest.mark.heavy
@pytest.mark.parametrize("below", ["/v1", "/maps", "/maps/v1/"])
def test_the_servers_address_may_have_a_path(jobs, place, below):
    """Routes lie below it, and ``/v1`` at its end is taken for theirs."""
    assert main(["submit", "scene.tif", "--server", jobs.address + below, "-o", "mask.png"]) == 0
    root = "/maps" if "maps" in below else ""
    assert jobs.asked[1].path == f"{root}/v1/scenes"
    assert (place / "mask.png").read_bytes() == RESULT


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "variables", "key"),
    [
        (["--api-key", "given"], {"VLLM_API_KEY": "vllm", "OPENAI_API_KEY": "openai"}, "given"),
        ([], {"VLLM_API_KEY": "vllm", "OPENAI_API_KEY": "openai"}, "vllm"),
        ([], {"VLLM_API_KEY": "", "OPENAI_API_KEY": "openai"}, "openai"),
    ],
)
def test_the_key_goes_with_every_request(jobs, monkeypatch, capsys, arguments, variables, key):
    """The option goes before VLLM_API_KEY, and that before OPENAI_API_KEY; it is never printed."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert submit(jobs, "scene.tif", "-o", "mask.png", *arguments) == 0
    assert [asked.headers["authorization"] for asked in jobs.asked] == [f"Bearer {key}"] * 5
    printed = capsys.readouterr()
    assert key not in (printed.out + printed.err).replace("vllm-mmout", "")


@pytest.mark.heavy
def test_an_older_file_is_replaced_with_what_lay_beside_it(jobs, place):
    """As with ``run``: the new GeoTIFF has its classes' names beside it, and nothing of the old one."""
    land, water = {"id": 0, "name": "land", "color": "#806000"}, {"id": 1, "name": "<water>", "color": "#0060ff"}
    jobs.output = {"output_format": "tiff", "classes": [land, water]}
    for name in ("mask.tif", "mask.tif.aux.xml", "mask.tif.ovr"):
        (place / name).write_bytes(b"old")
    assert submit(jobs, "scene.tif", "-o", "mask.tif") == 0
    assert (place / "mask.tif").read_bytes() == RESULT
    assert names(place) == ["mask.qml", "mask.tif", "mask.tif.aux.xml", "scene.tif"]
    assert "<Category>&lt;water&gt;</Category>" in (place / "mask.tif.aux.xml").read_text()
    assert 'value="1" color="#0060ff" alpha="255" label="&lt;water&gt;"' in (place / "mask.qml").read_text()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("out", "files"),
    [
        ("out/", ["out/scene-segmentation.tif", "out/scene-tensor.tif"]),
        ("m.tif", ["m-segmentation.tif", "m-tensor.tif"]),
    ],
)
def test_each_processor_has_its_file(jobs, place, capsys, out, files):
    """They are named as ``run`` names them, in a folder after the input."""
    jobs.results = {"segmentation": b"classes", "tensor": b"numbers"}
    jobs.output = {"output_format": "tiff"}
    assert submit(jobs, "scene.tif", "-o", out, "--processor", "segmentation,tensor") == 0
    assert capsys.readouterr().out.split() == files
    assert [(place / file).read_bytes() for file in files] == [b"classes", b"numbers"]


def test_without_waiting_there_is_only_an_id(jobs, place, capsys):
    """The job is left to the server; what is printed can go on with it, from another process too."""
    assert submit(jobs, "scene.tif", "--no-wait") == 0
    assert capsys.readouterr() == (f"{ID}\n", "")
    assert [asked.method for asked in jobs.asked] == ["GET", "POST"]
    assert submit(jobs, "--resume", ID, "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert [asked.method for asked in jobs.asked[2:]] == ["GET", "GET", "DELETE"]


@pytest.mark.heavy
def test_a_kept_job_is_not_removed(jobs, place):
    """With --keep the result can be fetched again."""
    assert submit(jobs, "scene.tif", "-o", "mask.png", "--keep") == 0
    assert not jobs.of("DELETE job")


@pytest.mark.heavy
def test_bars_show_bytes_and_tiles(jobs, monkeypatch):
    """On a terminal there is one for the upload, one for the tiles, and one for the download."""
    jobs.steps = [{"status": "queued"}, RUNNING]
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    last = {line.split(":")[0]: line for line in terminal.getvalue().replace("\n", "\r").split("\r") if "%" in line}
    assert "100%" in last["Upload"]
    assert "4/4" in last["Tiles"]
    assert "1.22M/1.22M" in last["Download"]


def test_a_download_that_breaks_goes_on(jobs, place, pauses):
    """Each further request asks for what is missing of the same bytes, and no byte is sent twice."""
    jobs.faults["GET content"] = [lambda answer: answer.content(upto=1000), lambda answer: answer.content(upto=300_000)]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    asked = jobs.of("GET content")
    assert [one.headers.get("range") for one in asked] == [None, "bytes=1000-", "bytes=300000-"]
    assert [one.headers.get("if-range") for one in asked] == [None, '"one"', '"one"']
    assert sum(one.sent for one in asked) == len(RESULT)
    assert names(place) == ["mask.png", "scene.tif"]


def test_a_download_breaks_more_often_than_is_tried(jobs, place, pauses, monkeypatch):
    """Only failures without a byte between them count, and what came of the rest."""
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "1")
    steps = range(1000, 9000, 1000)
    jobs.faults["GET content"] = [lambda answer, upto=upto: answer.content(upto=upto) for upto in steps]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT


def test_a_result_that_has_changed_is_fetched_anew(jobs, place, pauses):
    """Bytes of two results are never joined."""
    jobs.faults["GET content"] = [lambda answer: answer.content(upto=1000, etag='"older"')]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert jobs.of("GET content")[1].headers["if-range"] == '"older"'


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_what_cannot_be_compared_is_fetched_anew(jobs, place, pauses, etag):
    """Without an ETag that compares bytes nothing is gone on with."""
    jobs.etag = etag
    jobs.faults["GET content"] = [lambda answer: answer.content(upto=1000)]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert "range" not in jobs.of("GET content")[1].headers


def test_a_server_without_ranges_is_not_asked_for_ever(jobs, place, pauses, monkeypatch, capsys):
    """A download that begins anew each time, and breaks, ends with an error."""
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "3")
    jobs.ranges = False
    jobs.faults["GET content"] = [lambda answer: answer.content(upto=1000)] * 50
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert len(jobs.of("GET content")) == 4
    assert "the connection to" in capsys.readouterr().err
    assert not jobs.of("DELETE job")


def test_a_refused_part_is_fetched_anew(jobs, place, pauses):
    """What the server does not have of the result (416) begins from the start."""
    jobs.faults["GET content"] = [
        lambda answer: answer.content(upto=1000),
        lambda answer: answer.give(416, b"", {"Content-Range": f"bytes */{len(RESULT)}"}),
    ]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT


@pytest.mark.heavy
def test_a_result_of_another_length_is_refused(jobs, place, capsys):
    """A server that sends less than it spoke of gives no file, and what it sent is not gone on with."""
    jobs.faults["GET content"] = [lambda answer: answer.give(200, RESULT[:1000], {"ETag": '"one"'})]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert f"the server sent another result than the {len(RESULT)} bytes" in capsys.readouterr().err
    assert not (place / "mask.png").exists()
    assert not jobs.of("DELETE job")
    assert submit(jobs, "--resume", ID, "-o", "mask.png") == 0
    assert "range" not in jobs.of("GET content")[1].headers
    assert (place / "mask.png").read_bytes() == RESULT


@pytest.mark.heavy
def test_a_killed_client_goes_on(jobs, place):
    """What a client that was killed has fetched is not fetched again, and the file appears when it is whole."""
    begun = []

    def hang(answer):
        answer.told.ranges = True
        answer.give(200, RESULT[:700_000], {"Content-Length": len(RESULT), "ETag": '"one"'})
        begun.append(answer)
        answer.rfile.read()  # until the client is gone

    jobs.faults["GET content"] = [hang]
    with process(jobs, "scene.tif", "-o", "mask.png") as client:
        while not (place / "mask.png.part").exists() or (place / "mask.png.part").stat().st_size < 500_000:
            assert client.poll() is None, client.stderr.read()
        client.kill()
        client.wait()
    assert names(place) == ["mask.png.part", "mask.png.part.json", "scene.tif"]
    there = (place / "mask.png.part").stat().st_size
    assert submit(jobs, "--resume", ID, "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert jobs.of("GET content")[1].headers["range"] == f"bytes={there}-"
    assert names(place) == ["mask.png", "scene.tif"]


@pytest.mark.parametrize("etag", ['"one"', '"older"'])
def test_a_download_that_was_whole_is_not_trusted_blindly(jobs, place, etag):
    """A client that was killed before the file had its name asks for one byte, and for all if the result changed."""
    source = f"{jobs.address}/v1/scenes/{ID}/content?processor=segmentation"
    (place / "mask.png.part").write_bytes(RESULT if etag == '"one"' else b"?" * len(RESULT))
    (place / "mask.png.part.json").write_text(
        f'{{"source": "{source}", "etag": "{etag[1:-1]}"}}'.replace(f'"{etag[1:-1]}"', f'"\\"{etag[1:-1]}\\""')
    )
    assert submit(jobs, "--resume", ID, "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    (asked,) = jobs.of("GET content")
    assert asked.headers["range"] == f"bytes={len(RESULT) - 1}-"
    assert asked.sent == (1 if etag == '"one"' else len(RESULT))


@pytest.mark.heavy
@pytest.mark.parametrize("record", [None, "", "{}", '{"source": "http://other/result", "etag": "\\"one\\""}'])
def test_bytes_of_something_else_are_thrown_away(jobs, place, record):
    """A part of another job, or one of which nothing is known, is not gone on with."""
    (place / "mask.png.part").write_bytes(b"?" * 5000)
    if record is not None:
        (place / "mask.png.part.json").write_text(record)
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT
    assert "range" not in jobs.of("GET content")[0].headers
    assert names(place) == ["mask.png", "scene.tif"]


@contextmanager
def process(jobs, *arguments):
    """The command in a process of its own, which ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "vllm_mmout.cli", "submit", *arguments, "--server", jobs.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as client:
        try:
            yield client
        finally:
            client.kill()


@pytest.mark.heavy
@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupt_cancels_the_job(jobs, place, keep):
    """Ctrl-C while the job runs takes it from the server, unless it shall be kept; the status is that of shells."""
    jobs.steps = [RUNNING] * 10_000
    with process(jobs, "scene.tif", "-o", "mask.png", *["--keep"] * keep) as client:
        assert jobs.looked.wait(60)
        client.send_signal(signal.SIGINT)
        printed, said = client.communicate(timeout=60)
    assert client.returncode == 130
    assert printed == ""
    assert len(jobs.of("DELETE job")) == (not keep)
    assert (f"the job {ID} is cancelled" in said) is not keep
    assert said.splitlines()[-1] == "vllm-mmout: interrupted"
    assert names(place) == ["scene.tif"]


@pytest.mark.heavy
def test_an_interrupt_of_the_download_keeps_what_came(jobs, place):
    """Ctrl-C then takes nothing away, and says how to go on."""
    jobs.faults["GET content"] = [
        lambda answer: (
            answer.give(200, RESULT[:700_000], {"Content-Length": len(RESULT), "ETag": '"one"'}),
            answer.rfile.read(),
        )
    ]
    with process(jobs, "scene.tif", "-o", "mask.png") as client:
        while not (place / "mask.png.part").exists() or (place / "mask.png.part").stat().st_size < 500_000:
            assert client.poll() is None, client.stderr.read()
        client.send_signal(signal.SIGINT)
        _, said = client.communicate(timeout=60)
    assert client.returncode == 130
    assert f"is kept; resume with vllm-mmout submit --resume {ID}" in said
    assert not jobs.of("DELETE job")
    assert names(place) == ["mask.png.part", "mask.png.part.json", "scene.tif"]


@pytest.mark.heavy
def test_a_job_that_cannot_be_cancelled_is_said(jobs, place):
    """The server's words are shown, and the status is still that of an interrupt."""
    jobs.steps = [RUNNING] * 10_000
    jobs.faults["DELETE job"] = [lambda answer: answer.json(500, error("the disk is gone"))]
    with process(jobs, "scene.tif", "-o", "mask.png") as client:
        assert jobs.looked.wait(60)
        client.send_signal(signal.SIGINT)
        _, said = client.communicate(timeout=60)
    assert client.returncode == 130
    assert f"the job {ID} could not be cancelled: the disk is gone" in said


@pytest.mark.heavy
def test_a_failed_job_says_why(jobs, place, capsys):
    """Its error is shown in its own words, nothing is written, and the job stays for whoever looks into it."""
    jobs.steps = [{"status": "failed", "error": {"code": "BadRequestError", "message": "tile 3 of 9 is damaged"}}]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "vllm-mmout: tile 3 of 9 is damaged"
    assert names(place) == ["scene.tif"]
    assert [asked.method for asked in jobs.asked] == ["GET", "POST", "GET"]


def refused(status, body, **headers):
    return lambda answer: (answer.read() if answer.command == "POST" else None, answer.json(status, body, headers))


ANSWERS = {
    "of the form": ("POST scenes", 400, error("bands must count from 1"), "bands must count from 1"),
    "of the key": (
        "GET scenes",
        401,
        {"error": "Unauthorized"},
        "Unauthorized (401); give the server's key with --api-key",
    ),
    "of the routes": ("GET scenes", 404, {"detail": "Not Found"}, "has no /v1/scenes: it is not a vllm-mmout server"),
    "of a job that is gone": ("GET job", 404, error("there is no such job"), "there is no such job"),
    "of a result that is gone": ("GET content", 404, error("it has expired"), "it has expired"),
    "of an engine that died": ("POST scenes", 503, error("the engine has died"), "the engine has died"),
    "of nothing known": ("GET job", 418, ["tea"], "answered 418 I'm a Teapot"),
    "in another form": ("GET job", 200, {"status": "completed"}, "did not answer like a vllm-mmout server"),
    "of a state unknown": ("GET job", 200, {"id": ID, "status": "paused"}, "did not answer like a vllm-mmout server"),
    "of an id that is none": (
        "POST scenes",
        200,
        {"id": "a; rm b", "status": "queued"},
        "did not answer like a vllm-mmout server",
    ),
    "with control characters": ("POST scenes", 400, error("red \x1b[31m"), "red  [31m"),
    "of no result": ("GET job", 200, {"id": ID, "status": "completed"}, "completed without a result"),
}


@pytest.mark.heavy
@pytest.mark.parametrize(("request_", "status", "body", "says"), ANSWERS.values(), ids=ANSWERS)
def test_what_a_server_refuses_is_said_in_its_words(jobs, place, capsys, request_, status, body, says):
    """One line, status 1, no traceback, and no file."""
    jobs.faults[request_] = [refused(status, body)]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("vllm-mmout: ")
    assert says in last
    assert not (place / "mask.png").exists()


def test_a_redirect_is_not_followed(jobs, capsys):
    """The key must not go to another server, and an upload cannot be sent twice."""
    jobs.faults["GET scenes"] = [lambda answer: answer.give(307, b"", {"Location": "https://elsewhere/v1/scenes"})]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert "redirects to https://elsewhere/v1/scenes; pass that address as --server" in capsys.readouterr().err
    assert len(jobs.asked) == 1


def test_a_server_that_is_not_there(jobs, capsys, pauses):
    """It is said at once, without further tries."""
    from serving import free_port

    assert main(["submit", "scene.tif", "--server", f"http://127.0.0.1:{free_port()}", "-o", "mask.png"]) == 1
    assert "cannot be reached: Connection refused; check that the server runs" in capsys.readouterr().err
    assert pauses == []


def test_a_full_server_is_asked_again(jobs, place, pauses, capsys):
    """After as long as it asks for, with the whole form, and a word to who waits."""
    full = refused(429, error("8 jobs wait, and no more are taken"), **{"Retry-After": "7"})
    jobs.faults["POST scenes"] = [full, full]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert [pause for pause in pauses if pause >= 7] == [7, 7]
    assert jobs.form()[-1] == ("image", "scene.tif", b"pixels of the scene")
    assert "8 jobs wait, and no more are taken; trying again in 7 s" in capsys.readouterr().err


@pytest.mark.parametrize(("retry_after", "tries"), [("1", 3), ("86400", 1)])
def test_a_full_server_is_not_asked_for_ever(jobs, pauses, monkeypatch, capsys, retry_after, tries):
    """Neither many times, nor after a day."""
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "2")
    jobs.faults["POST scenes"] = [refused(429, error("full"), **{"Retry-After": retry_after})] * 20
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert len(jobs.of("POST scenes")) == tries
    assert "vllm-mmout: full (" in capsys.readouterr().err


@pytest.mark.heavy
def test_an_upload_that_breaks_is_sent_again(jobs, place, pauses):
    """Of a form that is not whole no server makes a job."""
    (place / "scene.tif").write_bytes(b"x" * (8 << 20))
    jobs.faults["POST scenes"] = [lambda answer: (answer.read(1 << 20), setattr(answer, "close_connection", True))]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert len(jobs.form()[-1][2]) == 8 << 20


def test_an_upload_that_may_have_become_a_job_is_not_sent_again(jobs, pauses, capsys):
    """All was sent and no answer came: a second job might be one too many."""
    jobs.faults["POST scenes"] = [lambda answer: (answer.read(), setattr(answer, "close_connection", True))]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert len(jobs.of("POST scenes")) == 1
    assert "the server may have created a job" in capsys.readouterr().err


def test_a_refusal_in_the_middle_of_an_upload_is_heard(jobs, place, capsys):
    """A server that refuses what is too large need not read it."""
    (place / "scene.tif").write_bytes(b"x" * (16 << 20))

    def refuse(answer):
        answer.read(1 << 20)
        answer.json(413, error("the body is larger than 1 MiB"))
        answer.connection.shutdown(1)
        answer.rfile.read()  # for a moment, as the real one does
        answer.close_connection = True

    jobs.faults["POST scenes"] = [refuse]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "vllm-mmout: the body is larger than 1 MiB"


def test_a_look_that_fails_is_repeated(jobs, place, pauses):
    """A job of hours outlives a connection that breaks, and a proxy that has no answer."""
    jobs.faults["GET job"] = [
        lambda answer: setattr(answer, "close_connection", True),
        lambda answer: answer.give(502, b"<html>Bad gateway</html>"),
    ]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    assert (place / "mask.png").read_bytes() == RESULT


@pytest.mark.heavy
def test_connections_are_closed(jobs):
    """Whatever became of the command, no socket of it is left."""
    before = open_sockets()
    jobs.faults["GET content"] = [lambda answer: answer.json(404, error("gone"))]
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert submit(jobs, "scene.tif", "-o", "mask.png") == 0
    deadline = time.monotonic() + 120
    while open_sockets() - before:  # the server's own, in threads of this process, end with those of the command
        assert time.monotonic() < deadline, "a connection is left open"
        time.sleep(0.01)


ONE = ["scene.tif", "-o", "mask.png"]
REFUSED = {
    "no file": (["-o", "mask.png"], 2, "name a FILE to send"),
    "no output": (["scene.tif"], 2, "-o is missing"),
    "no server": ([*ONE, "--server", "localhost:8000"], 2, "--server localhost:8000 must be the address of a server"),
    "a server with a password": ([*ONE, "--server", "http://a:b@c"], 2, "--server http://c contains a user"),
    "a server with a query": ([*ONE, "--server", "http://c/?a=b"], 2, "--server http://c/ must be the address"),
    "a port that is none": ([*ONE, "--server", "http://c:99999"], 2, "must be the address of a server"),
    "a key that cannot be sent": ([*ONE, "--api-key", "a\nb"], 2, "the API key has characters"),
    "an unknown suffix": (["scene.tif", "-o", "mask.shp"], 2, "servers do not write .shp files"),
    "two formats": ([*ONE, "--output-format", "tiff"], 2, "-o mask.png means png, but --output-format is tiff"),
    "no suffix": (["scene.tif", "-o", "mask"], 2, "for a folder write mask/"),
    "a missing folder": (["scene.tif", "-o", "no/mask.png"], 1, "there is no folder no; make it first"),
    "a missing file": (["none.tif", "-o", "mask.png"], 1, "no such file: none.tif"),
    "an empty file": (["empty.tif", "-o", "mask.png"], 1, "empty.tif is empty"),
    "a folder": (["folder", "-o", "mask.png"], 1, "folder is a folder; name its files"),
    "a file and an address": (["scene.tif", "https://h/a.tif", "-o", "mask.png"], 2, "send only URLs, or only files"),
    "bands and indices": ([*ONE, "--bands", "1", "--indices", "0"], 2, "bands and indices are both set"),
    "an engine's flag": ([*ONE, "--max-num-seqs", "2"], 2, "unknown arguments: --max-num-seqs 2"),
    "a resumed file": (["scene.tif", "--resume", ID, "-o", "mask.png"], 2, "leave scene.tif out"),
    "a resumed option": (["--resume", ID, "-o", "m.png", "--tile", "64"], 2, "leave --tile out"),
    "a resumed format": (["--resume", ID, "-o", "m.png", "--output-format", "png"], 2, "leave --output-format out"),
    "a resumed path": (["--resume", "../x", "-o", "m.png"], 2, "--resume '../x' is not a job id such as"),
    "resumed without waiting": (["--resume", ID, "-o", "m.png", "--no-wait"], 2, "give only one of the two"),
    "resumed to nowhere": (["--resume", ID], 2, "-o is missing"),
}


@pytest.mark.parametrize(("arguments", "status", "says"), REFUSED.values(), ids=REFUSED)
def test_what_can_be_known_before_is_refused_before(jobs, place, capsys, arguments, status, says):
    """One line, nothing sent, nothing written."""
    (place / "empty.tif").touch()
    (place / "folder").mkdir()
    before = names(place)
    try:
        found = main(["submit", "--server", jobs.address, *arguments])
    except SystemExit as end:
        found = end.code
    assert found == status
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert names(place) == before
    assert jobs.asked == []


def test_a_result_of_another_format_is_refused(jobs, place, capsys):
    """A file must be what its suffix says."""
    assert submit(jobs, "--resume", ID, "-o", "mask.tif") == 2
    assert "the result is png, but -o mask.tif means tiff; name a file that ends in .png" in capsys.readouterr().err
    assert not jobs.of("GET content")
    assert not jobs.of("DELETE job")


@pytest.mark.heavy
def test_one_file_is_written_by_one_process(jobs, place, capsys):
    """A second command with the same -o is refused instead of mixed with the first."""
    import fcntl

    with (place / "mask.png.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert submit(jobs, "scene.tif", "-o", "mask.png") == 1
    assert "another process is writing mask.png.part" in capsys.readouterr().err


@pytest.mark.heavy
def test_no_engine_is_needed(place):
    """The command loads neither torch nor vLLM, nor does it need them."""
    code = (
        "import sys\nfor name in ('torch', 'vllm', 'transformers'): sys.modules[name] = None\n"
        "from vllm_mmout.cli import main\n"
        "print(main(['submit', 'scene.tif', '--server', 'http://127.0.0.1:9', '-o', 'm.png']))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
    assert "cannot be reached" in done.stderr
