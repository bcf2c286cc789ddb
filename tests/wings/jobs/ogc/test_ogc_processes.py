"""OGC API Processes over the jobs, on an app in this process whose engine gives a picture and a table."""

from __future__ import annotations

import asyncio
import base64
import email
import io
import json
import re
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from text_service import TextEngine, text_app

pytestmark = pytest.mark.engine
EXECUTION = "/ogc/processes/painter/execution"
EXCEPTIONS = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0"
RESULTS = "http://www.opengis.net/def/rel/ogc/1.0/results"
NONE = "scene_" + "a" * 43
ASYNC = {"Prefer": "wait=1, respond-async"}


class Painter(TextEngine):
    """An engine with two output processors, one of which gives a table."""

    def __init__(self):
        from vllm_mmout import ImageOutput, StructuredOutput

        class Table(StructuredOutput):
            n: int

        super().__init__()
        self.made = lambda: {"picture": ImageOutput(np.full((8, 8, 3), 99, np.uint8)), "table": Table(n=1)}
        self.assumed, self.error, self.hangs = (), None, None
        binding = self.output_processor.binding
        binding.processors = {
            "picture": SimpleNamespace(formats=lambda _: ImageOutput.formats, outputs=(), modality="image"),
            "table": SimpleNamespace(formats=lambda _: StructuredOutput.formats, outputs=(), modality="structured"),
        }
        binding.choice.pick = lambda names: names if isinstance(names, tuple) else (names or "picture",)
        binding.inputs = SimpleNamespace(
            kind=None,
            opens_files=True,
            takes="pictures",
            fields=(),
            words=(),
            pictures=True,
            rasters=None,
            options=set(),
        )

    async def generate(self, data, params, request_id, **_):
        """Yield the results of the processors that the request picks."""
        if self.error is not None:
            raise self.error
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        made, picked = self.made(), params.processor
        outputs = {name: made[name] for name in picked} if isinstance(picked, tuple) else made[picked]
        yield SimpleNamespace(finished=True, progress=None, assumed=self.assumed, outputs=outputs)


@pytest.fixture(scope="module")
def engine():
    """The engine of the app."""
    return Painter()


@pytest.fixture(scope="module")
def asking(engine):
    """A client of the app."""
    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

    app = text_app(engine)
    app.state.mmout_scenes = SceneRunner(SceneBoard(app.state.mmout.store), lambda job: (job, job))
    with TestClient(app) as client:
        yield client


@pytest.fixture(scope="module")
def picture():
    """A small PNG as base64."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def executed(asking, picture, outputs=None, response="raw", **headers):
    """Execute the process on a picture, and return the response."""
    body = {"inputs": {"image": picture}, "response": response}
    return asking.post(EXECUTION, json={**body, **({"outputs": outputs} if outputs else {})}, headers=headers)


def exception(answer, status, kind, words=""):
    """Check that a response is an exception document of the standard."""
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert (answer.status_code, document["status"], document["type"]) == (status, status, kind), document
    assert document["title"]
    assert words in document["detail"], document["detail"]


def rels(document):
    """Return the links of a document by relation, after a check of their form."""
    assert all(link["href"].startswith("http://testserver/") and link["type"] for link in document["links"])
    return {link["rel"]: link["href"] for link in document["links"]}


def png(content):
    """Return the size of a PNG."""
    with Image.open(io.BytesIO(content)) as image:
        return image.format, image.size


def test_each_link_from_the_landing_page_leads_to_its_document(asking):
    """A client that knows only the landing page finds the conformance classes, processes, jobs and API definition."""
    links = rels(asking.get("/ogc/").raise_for_status().json())
    short = {rel.rpartition("/")[2]: asking.get(href).raise_for_status() for rel, href in links.items()}
    assert short["self"].json()["links"]
    assert "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/core" in short["conformance"].json()["conformsTo"]
    (summary,) = short["processes"].json()["processes"]
    assert (summary["id"], summary["jobControlOptions"]) == ("painter", ["sync-execute", "async-execute", "dismiss"])
    assert short["job-list"].json()["jobs"] == []
    assert short["service-desc"].headers["content-type"] == "application/vnd.oai.openapi+json;version=3.0"


def test_the_api_definition_is_openapi_3_0_and_has_each_route(asking):
    """The definition is valid, and each of its paths with methods is answered by this server."""
    validator = pytest.importorskip("openapi_spec_validator", reason="it checks the definition")
    definition = asking.get("/ogc/api").json()
    assert definition["openapi"] == "3.0.3"
    assert definition["servers"] == [{"url": "http://testserver/ogc"}]
    validator.validate(_without_references(definition))
    for path, methods in definition["paths"].items():
        answer = asking.patch("/ogc" + re.sub(r"\{\w+\}", "x", path))
        assert {method.upper() for method in methods} <= {*answer.headers["allow"].split(", ")}


def _without_references(part):
    """Return an API definition without references to schemas on the web."""
    if isinstance(part, list):
        return [_without_references(item) for item in part]
    return (
        {key: _without_references(value) for key, value in part.items() if key != "$ref"}
        if isinstance(part, dict)
        else part
    )


def test_the_description_has_the_inputs_and_outputs_that_the_model_takes(asking):
    """Options that the model refuses are no inputs, and each output lists its media types."""
    process = asking.get("/ogc/processes/painter").raise_for_status().json()
    assert process.keys() >= {"id", "version", "jobControlOptions", "outputTransmission", "links", "inputs", "outputs"}
    assert process["inputs"]["image"] | {"description": ""} == {
        "title": "image",
        "description": "",
        "minOccurs": 1,
        "maxOccurs": 100,
        "schema": {"type": "string", "contentEncoding": "base64", "contentMediaType": "application/octet-stream"},
    }
    assert process["inputs"]["background"]["schema"]["enum"] == ["auto", "opaque", "transparent"]
    assert not process["inputs"].keys() & {"model", "processor", "output_format", "prompt", "bbox", "seed", "path"}
    media_types = [schema["contentMediaType"] for schema in process["outputs"]["picture"]["schema"]["oneOf"]]
    assert media_types[0] == "image/png"
    first = process["outputs"]["table"]["schema"]["oneOf"][0]
    assert first == {"type": "object", "contentMediaType": "application/json"}


def test_one_result_is_sent_as_its_file(asking, picture, engine):
    """A raw response has the file, in the requested format, what was assumed, and a link to the job."""
    engine.assumed = ("the bands are RGB",)
    outputs = {"picture": {"format": {"mediaType": "image/webp"}}}
    answer = executed(asking, {"value": picture, "mediaType": "image/png", "encoding": "base64"}, outputs)
    engine.assumed = ()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/webp")
    assert png(answer.content) == ("WEBP", (8, 8))
    assert answer.headers["x-mmout-warnings"] == '["the bands are RGB"]'
    (monitor,) = re.findall(r'<(.*)>; rel="monitor"', answer.headers["link"])
    job = asking.get(monitor).json()
    assert (job["status"], job["progress"], job["message"]) == ("successful", 100, "the bands are RGB")


def test_several_results_are_sent_as_parts(asking, picture):
    """A raw response with all outputs is multipart/related. A result by reference is an empty part with its URL."""
    answer = executed(asking, picture, {"picture": {"transmissionMode": "reference"}, "table": {}})
    message = email.message_from_bytes(
        b"Content-Type: " + answer.headers["content-type"].encode() + b"\n\n" + answer.content
    )
    first, second = message.get_payload()
    assert message.get_content_type() == "multipart/related"
    assert (first["Content-ID"], first.get_payload(decode=True).strip()) == ("<picture>", b"")
    assert png(asking.get(first["Content-Location"]).raise_for_status().content) == ("PNG", (8, 8))
    assert (second["Content-ID"], second.get_content_type()) == ("<table>", "application/json")
    assert json.loads(second.get_payload(decode=True)) == {"n": 1}


def test_results_by_reference_alone_are_links(asking, picture):
    """A raw response without values has no body, and a header with the URL of the file."""
    answer = executed(asking, picture, {"picture": {"transmissionMode": "reference"}})
    assert (answer.status_code, answer.content) == (204, b"")
    (href,) = re.findall(rf'<([^>]*)>; rel="{RESULTS}"; type="image/png"; title="picture"', answer.headers["link"])
    assert png(asking.get(href, headers={"Range": "bytes=0-999"}).content) == ("PNG", (8, 8))


def test_a_document_holds_all_results(asking, picture):
    """A file is base64 in the document, JSON is a part of it, and a result by reference is a link."""
    document = executed(asking, picture, response="document").raise_for_status().json()
    assert document["table"] == {"mediaType": "application/json", "value": {"n": 1}}
    assert document["picture"].keys() == {"mediaType", "encoding", "value"}
    assert png(base64.b64decode(document["picture"]["value"])) == ("PNG", (8, 8))
    outputs = {"picture": {"transmissionMode": "reference"}}
    (linked,) = executed(asking, picture, outputs, "document").raise_for_status().json().values()
    assert linked["type"] == "image/png"
    assert png(asking.get(linked["href"]).content) == ("PNG", (8, 8))


def test_the_life_of_a_job_in_the_background(asking, picture):
    """A client follows the links from the created job to its results, and dismisses it."""
    answer = executed(asking, picture, {"table": {}}, "document", **ASYNC)
    assert (answer.status_code, answer.headers["preference-applied"]) == (201, "respond-async")
    job, where = answer.json(), answer.headers["location"]
    assert (job["type"], job["processID"], rels(job)["self"]) == ("process", "painter", where)
    while job["status"] in ("accepted", "running"):
        job = asking.get(where).raise_for_status().json()
    times = [datetime.fromisoformat(job[name]) for name in ("created", "started", "finished")]
    assert times == sorted(times)
    assert asking.get(rels(job)[RESULTS]).json() == {"table": {"mediaType": "application/json", "value": {"n": 1}}}
    dismissed = asking.delete(where).raise_for_status().json()
    assert (dismissed["jobID"], dismissed["status"]) == (job["jobID"], "dismissed")
    exception(asking.get(where), 404, f"{EXCEPTIONS}/no-such-job")


def test_the_list_of_jobs_has_pages_and_filters(asking, picture):
    """Pages follow each other by their links, and each filter of the standard applies."""
    for one in asking.get("/ogc/jobs?limit=1000").json()["jobs"]:
        asking.delete(f"/ogc/jobs/{one['jobID']}")
    for _ in range(3):
        executed(asking, picture, {"table": {}}).raise_for_status()
    whole = asking.get("/ogc/jobs").json()
    ids = [job["jobID"] for job in whole["jobs"]]
    assert len(ids) == 3
    assert "next" not in rels(whole)
    first = asking.get("/ogc/jobs?limit=2&status=successful").json()
    second = asking.get(rels(first)["next"]).json()
    assert [job["jobID"] for job in [*first["jobs"], *second["jobs"]]] == ids
    created = whole["jobs"][1]["created"]
    for query, count in (
        ("status=failed,running", 0),
        ("processID=painter,other&type=process", 3),
        ("processID=other", 0),
        ("datetime=../2020-01-01T00:00:00Z", 0),
        ("datetime=2020-01-01T00:00:00Z/..", 3),
        ("minDuration=3600", 0),
        ("maxDuration=3600", 3),
    ):
        assert len(asking.get(f"/ogc/jobs?{query}").json()["jobs"]) == count, query
    assert ids[1] in [job["jobID"] for job in asking.get("/ogc/jobs", params={"datetime": created}).json()["jobs"]]


def test_results_of_unfinished_and_failed_jobs_are_exceptions(asking, picture, engine):
    """The results of a running job are not ready, and those of a failed job are its error."""
    from vllm_mmout.errors import InputError

    board = asking.app.state.mmout_scenes.board
    waiting = board.add(model="painter", name="", nbytes=0, most=99, most_bytes=99)
    exception(asking.get(f"/ogc/jobs/{waiting.id}/results"), 404, f"{EXCEPTIONS}/result-not-ready", "queued")
    board.delete(waiting.id)
    engine.error = InputError("the picture is upside down")
    answer = executed(asking, picture)
    engine.error = None
    exception(answer, 400, "InvalidParameterValue", "upside down")
    failed = asking.get("/ogc/jobs?limit=1").json()["jobs"][0]
    assert (failed["status"], failed["message"]) == ("failed", "the picture is upside down")
    href = rels(failed)["http://www.opengis.net/def/rel/ogc/1.0/exceptions"]
    exception(asking.get(href), 400, "InvalidParameterValue", "upside down")


def test_an_execution_whose_client_is_gone_is_dismissed(asking, picture, engine):
    """A client that disconnects before it has the results leaves no job behind."""
    body = json.dumps({"inputs": {"image": picture}}).encode()
    board, sent = asking.app.state.mmout_scenes.board, []
    scope = {"type": "http", "method": "POST", "path": EXECUTION, "query_string": b"", "app": asking.app}
    scope["headers"] = [(b"content-type", b"application/json"), (b"host", b"testserver")]

    async def receive():
        if not sent:
            sent.append({"type": "http.request", "body": body})
            return sent[0]
        await engine.hangs.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    engine.hangs = asyncio.Event()
    asking.portal.call(asking.app, scope, receive, send)
    engine.hangs = None
    assert sent[1]["status"] == 499
    assert board.running() == {}


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/processes/none", 404, f"{EXCEPTIONS}/no-such-process"),
        ("POST", "/processes/none/execution", 404, f"{EXCEPTIONS}/no-such-process"),
        ("GET", "/jobs/none", 404, f"{EXCEPTIONS}/no-such-job"),
        ("GET", f"/jobs/{NONE}/results", 404, f"{EXCEPTIONS}/no-such-job"),
        ("DELETE", f"/jobs/{NONE}", 404, f"{EXCEPTIONS}/no-such-job"),
        ("GET", "/none", 404, "about:blank"),
        ("PUT", "/jobs", 405, "about:blank"),
        ("POST", "", 405, "about:blank"),
        ("OPTIONS", "/jobs", 405, "about:blank"),
        ("GET", "/processes?limit=0", 400, "InvalidParameterValue"),
        ("GET", "/jobs?status=done", 400, "InvalidParameterValue"),
        ("GET", "/jobs?datetime=yesterday", 400, "InvalidParameterValue"),
        ("GET", "/jobs?minDuration=-1", 400, "InvalidParameterValue"),
        ("GET", f"/jobs?after={NONE}", 400, "InvalidParameterValue"),
    ],
)
def test_each_error_is_an_exception_document(asking, method, path, status, kind):
    """Errors have the form of the standard, and its types where it names one."""
    exception(asking.request(method, f"/ogc{path}"), status, kind)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": None}, "inputs has no image"),
        ({"inputs": []}, "inputs must be a JSON object"),
        ({"inputs": {"image": 5}}, "image is no file"),
        ({"inputs": {"image": "http://127.0.0.1/a.png"}}, "image must be base64"),
        ({"inputs": {"image": "%%%%"}}, "base64"),
        ({"inputs": {"image": {"href": "file:///etc/passwd"}}}, "reads no files"),
        ({"inputs": {"image": {"href": "http://10.0.0.1/a.png", "value": "AAAA"}}}, "both href and value"),
        ({"inputs": {"image": ["AAAA"] * 101}}, "more than 100 images"),
        ({"inputs": {"image": "AAAA", "tile": 16}}, "the model does not take it"),
        ({"inputs": {"image": "AAAA", "simplify": {"href": "http://10.0.0.1"}}}, "sent by reference"),
        ({"inputs": {"image": "AAAA", "background": {"value": "pink"}}}, "background must be one of"),
        ({"outputs": {"sound": {}}}, "unknown output 'sound'"),
        ({"outputs": {"table": {"format": {"mediaType": "image/tiff"}}}}, "cannot be 'image/tiff'"),
        ({"outputs": {"picture": {"format": {"mediaType": "image/png"}}, "table": {}}}, "one format"),
        ({"outputs": {"table": {"transmissionMode": "pigeon"}}}, "outputs is wrong"),
        ({"response": "html"}, "response must be raw or document"),
        ({"subscriber": {"successUri": "http://10.0.0.1"}}, "does not call clients"),
        ({"mode": "async"}, "unknown member"),
    ],
)
def test_what_cannot_be_executed_is_refused(asking, picture, change, words):
    """A request that is wrong, or asks for more than this server does, is refused with the reason."""
    answer = asking.post(EXECUTION, json={"inputs": {"image": picture}, **change})
    exception(answer, 400, "InvalidParameterValue", words)


def test_a_bounding_box_of_the_standard_becomes_the_option():
    """The standard's object and a plain list are the same option, and the object has longitudes and latitudes."""
    from vllm_mmout.wings.jobs.ogc.execute_request import _fields

    box, crs = [5.0, 45.0, 6.0, 46.0], "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
    assert _fields({"image": "a", "bbox": {"bbox": box}}) == {"bbox": box, "bbox_crs": crs, "image": ("a",)}
    assert _fields({"image": "a", "bbox": box})["bbox"] == box


def test_ids_of_processes_are_safe_and_different():
    """Names of models become path segments, and two names never share an id."""
    from vllm_mmout.wings.jobs.ogc.processes import process_id_of, processes

    names = ["ibm/flood v2", "ibm-flood-v2", "../"]
    models = SimpleNamespace(base_model_paths=[SimpleNamespace(name=name) for name in names], lora_requests={"fine": 0})
    served = processes(SimpleNamespace(binding=SimpleNamespace(inputs=None), models=models))
    assert [*served] == ["ibm-flood-v2", "ibm-flood-v2~2", "model", "fine"]
    assert [process_id_of(name, served) for name in (*names, "a/b")] == [
        "ibm-flood-v2",
        "ibm-flood-v2~2",
        "model",
        "a-b",
    ]
