"""The processing script examples/qgis without QGIS, whose classes are replaced, against a server without an engine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from scene_jobs import ID, RESULT, RUNNING, error
from scene_jobs import a_server_of_jobs as a_server_of_jobs  # noqa: PLC0414 - a fixture

SCRIPT = Path(__file__).resolve().parents[1] / "examples/qgis/vllm_mmout_qgis.py"
CLASSES = [{"id": 0, "name": "land", "color": "#d9cfb4"}, {"id": 1, "name": None, "color": "#0072b2"}]
LOGIN = {"Authorization": "Bearer a key"}


class Algorithm:
    """The methods of QGIS's class that the script calls, for parameters that are values already."""

    def value(self, parameters, name, _context, _crs=None):
        return parameters.get(name, "")

    parameterAsRasterLayer = parameterAsExtent = parameterAsOutputLayer = parameterAsString = value  # noqa: N815 - QGIS's


class Config:
    """A login that the user chose in QGIS."""

    def method(self):
        return "APIHeader"

    def configMap(self):  # noqa: N802 - QGIS's name
        return LOGIN


@pytest.fixture
def script(monkeypatch):
    """The script, imported beside stand-ins of QGIS and GDAL."""
    core, osgeo = ModuleType("qgis.core"), ModuleType("osgeo")
    manager = SimpleNamespace(loadAuthenticationConfig=lambda name, config, full: name == "login")
    core.QgsApplication = SimpleNamespace(authManager=lambda: manager)
    core.QgsAuthMethodConfig, core.QgsProcessingAlgorithm = Config, Algorithm
    core.QgsProcessingException = type("QgsProcessingException", (Exception,), {})
    core.__getattr__ = lambda name: SimpleNamespace
    osgeo.gdal = SimpleNamespace(
        SetConfigOption=lambda *_: None,
        Translate=lambda target, source, **options: Path(target).write_text(
            f"{Path(source).name} {options['projWin']}"
        ),
    )
    for name, module in {"qgis": ModuleType("qgis"), "qgis.core": core, "osgeo": osgeo}.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("vllm_mmout_qgis", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.PAUSES = (0.001, 0.001)
    return made


@pytest.fixture
def asked(jobs, tmp_path):
    """Parameters of the script: a server, a layer of one file and a result, all of the layer."""
    (tmp_path / "scene.tif").write_bytes(b"pixels of the scene")
    jobs.output = {"output_format": "tiff", "classes": CLASSES}
    layer = SimpleNamespace(source=lambda: str(tmp_path / "scene.tif"), providerType=lambda: "gdal", crs=lambda: None)
    return {
        "SERVER": jobs.address,
        "LAYER": layer,
        "EXTENT": SimpleNamespace(isNull=lambda: True),
        "OUTPUT": str(tmp_path / "mask.tif"),
    }


def run(script, parameters, *, cancelled=False):
    """What the script returns, and what it told the user."""
    told = []
    feedback = SimpleNamespace(
        setProgress=told.append, pushInfo=told.append, pushWarning=told.append, isCanceled=lambda: cancelled
    )
    return script.RunModel().processAlgorithm(parameters, None, feedback), told


def test_a_layer_becomes_a_result_with_its_style(script, jobs, asked, tmp_path):
    """The file is sent with the options, progress is shown, and result and style lie where they were asked for."""
    jobs.steps = [RUNNING]
    answer, told = run(script, {**asked, "OPTIONS": "tile=64 bbox_crs='EPSG: 1'", "MODEL": "water", "AUTH": "login"})
    assert answer == {"OUTPUT": str(tmp_path / "mask.tif"), "JOB": ID}
    assert told == [f"job {ID}", 25, 100]
    assert (tmp_path / "mask.tif").read_bytes() == RESULT
    fields = {"output_format": b"tiff", "model": b"water", "tile": b"64", "bbox_crs": b"EPSG: 1"}
    sent = [(name, None, text) for name, text in fields.items()]
    assert jobs.form() == [*sent, ("image", "scene.tif", b"pixels of the scene")]
    assert {request.headers["authorization"] for request in jobs.asked} == {LOGIN["Authorization"]}
    entries = [dict(entry.attrib) for entry in ET.parse(tmp_path / "mask.qml").iter("paletteEntry")]  # noqa: S314 - ours
    assert [(entry["value"], entry["color"], entry["label"]) for entry in entries] == [
        ("0", "#d9cfb4", "land"),
        ("1", "#0072b2", "1"),
    ]


def test_an_extent_sends_that_part_alone(script, jobs, asked, tmp_path):
    """GDAL cuts it out; so it does where other files belong to the layer."""
    sides = {"xMinimum": 1, "yMinimum": 2, "xMaximum": 3, "yMaximum": 4}
    part = SimpleNamespace(isEmpty=lambda: False, **{side: lambda at=at: at for side, at in sides.items()})
    beyond = SimpleNamespace(isEmpty=lambda: True)
    asked["LAYER"].extent = lambda: "the layer"
    run(script, {**asked, "EXTENT": SimpleNamespace(isNull=lambda: False, intersect=lambda other: part)})
    assert jobs.form()[-1] == ("image", "scene.tif", b"scene.tif (1, 4, 3, 2)")
    with pytest.raises(script.QgsProcessingException, match="beyond the layer"):
        run(script, {**asked, "EXTENT": SimpleNamespace(isNull=lambda: False, intersect=lambda other: beyond)})
    assert script.one_file(str(tmp_path / "scene.tif"))
    (tmp_path / "scene.tif.msk").touch()
    assert not script.one_file(str(tmp_path / "scene.tif"))


def test_a_job_that_is_cancelled_is_deleted(script, jobs, asked, tmp_path):
    """The server stops, and no result is written."""
    answer, _ = run(script, asked, cancelled=True)
    assert answer == {}
    assert len(jobs.of("DELETE job")) == 1
    assert not (tmp_path / "mask.tif").exists()


def test_a_style_that_the_user_saved_stays(script, asked, tmp_path):
    """A style of an older result goes if the new one has no classes."""
    style = tmp_path / "mask.qml"
    style.write_text("my own")
    run(script, asked)
    assert style.read_text() == "my own"
    style.write_text(script.style(CLASSES))
    script.write_style(tmp_path / "mask.tif", None)
    assert not style.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"OPTIONS": "tile"}, "options are written as name=value"),
        ({"OPTIONS": "output_format=png"}, "leave out output_format=png"),
        ({"OPTIONS": "processor=a,b"}, "name one processor"),
        ({"OUTPUT": "mask.png"}, "ends in .tif"),
        ({"SERVER": "file:///etc"}, "must begin with http"),
        ({"SERVER": "http://127.0.0.1:9"}, "cannot be reached"),
        ({"AUTH": "other"}, "there is no authentication"),
    ],
)
def test_what_cannot_be_done_is_said(script, asked, changed, message):
    """An error of the script is an error of QGIS, with what to do."""
    with pytest.raises(script.QgsProcessingException, match=message):
        run(script, {**asked, **changed})


def test_the_words_of_the_server_are_shown(script, jobs, asked, tmp_path):
    """Of a request that it refuses, and of a job that failed."""
    jobs.faults["POST scenes"] = [lambda answer: (answer.read(), answer.json(400, error("scene has 4 bands")))]
    with pytest.raises(script.QgsProcessingException, match="answers 400: scene has 4 bands"):
        run(script, asked)
    jobs.steps = [{"status": "failed", "error": {"code": "x", "message": "tile 3 is damaged"}}]
    with pytest.raises(script.QgsProcessingException, match="the job failed: tile 3 is damaged"):
        run(script, asked)
    jobs.faults["GET content"] = [lambda answer: answer.content(upto=9)]
    with pytest.raises(script.QgsProcessingException):
        run(script, asked)
    assert not list(tmp_path.glob("mask*"))
