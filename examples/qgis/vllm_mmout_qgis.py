"""QGIS processing script: run a model of a vllm_mmout server on a raster layer, and load the result with its style.

It is one file and needs only QGIS 3.22 or newer. In the Processing Toolbox choose Scripts > Add Script to Toolbox, or
copy the file to the folder that Settings > Options > Processing > Scripts names. Then run "vllm_mmout > Run a model".
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from osgeo import gdal
from qgis.core import (
    QgsApplication,
    QgsAuthMethodConfig,
    QgsProcessingAlgorithm,
    QgsProcessingException,
    QgsProcessingParameterAuthConfig,
    QgsProcessingParameterExtent,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 20
"""Bytes that are sent or received at once."""
TIMEOUT = 300
"""Seconds to wait for the server's next answer."""
PAUSES = (0.2, 2.0)
"""First and longest pause between two questions about a job, in seconds."""
OURS = "<!-- written by vllm_mmout beside a raster of classes -->"
"""Comment in a style file that may be replaced. QGIS drops it when a user saves a style of their own."""


class ServerError(Exception):
    """The server refused a request, cannot be reached, or its job failed."""


class Server:
    """A vllm_mmout server.

    Args:
        address: as ``http://host:8000``.
        headers: headers of each request, such as ``Authorization``.

    """

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
            raise ServerError(f"the server's address must begin with http:// or https://, got {address!r}")
        self.address = address.rstrip("/")
        self.headers = headers or {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request and return the open response. Raise ServerError with the server's own message if it fails."""
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self.address + path,
            body,
            {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}},
            method=method,
        )
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310 - the scheme was checked
        except urllib.error.HTTPError as error:
            raise ServerError(f"{self.address} answers {error.code}: {_message(error)}") from error
        except OSError as error:
            raise ServerError(f"{self.address} cannot be reached: {getattr(error, 'reason', error)}") from error

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """Send a request and return the JSON of the response."""
        with self.ask(method, path, body, **headers) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def submit(self, file: Path, fields: dict[str, str]) -> dict[str, Any]:
        """Upload a file and create a job. Return its description."""
        boundary = secrets.token_hex(16)
        start = f"--{boundary}\r\nContent-Disposition: form-data; name="
        head = "".join(f'{start}"{_in_quotes(name)}"\r\n\r\n{text}\r\n' for name, text in fields.items())
        head += f'{start}"image"; filename="{_in_quotes(file.name)}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        first, last = head.encode(), f"\r\n--{boundary}--\r\n".encode()
        size = len(first) + file.stat().st_size + len(last)
        return self.json(
            "POST",
            "/v1/scenes",
            _pieces(first, file, last),
            Content_Type=f"multipart/form-data; boundary={boundary}",
            Content_Length=str(size),
        )

    def wait(
        self, job: dict[str, Any], progress: Callable[[float], object], cancelled: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Wait for the end of a job and return its description, or None if the user cancelled it."""
        pause, longest = PAUSES
        path = f"/v1/scenes/{urllib.parse.quote(job['id'])}"
        while job["status"] not in ("completed", "failed"):
            if cancelled():
                self.json("DELETE", path)
                return None
            time.sleep(pause)
            pause = min(2 * pause, longest)
            job = self.json("GET", path)
            progress(job["progress"])
        if job["status"] == "failed":
            raise ServerError(f"the job failed: {job['error']['message']}")
        return job

    def download(self, job: dict[str, Any], target: Path) -> None:
        """Write the result of a completed job to a file."""
        part = target.with_name(f"{target.name}.part")
        (output,) = job["outputs"]
        query = urllib.parse.urlencode({"processor": output["processor"]})
        path = f"/v1/scenes/{urllib.parse.quote(job['id'])}/content?{query}"
        try:
            with self.ask("GET", path) as response, part.open("wb") as file:
                shutil.copyfileobj(response, file, PIECE)
            if part.stat().st_size != output["bytes"]:
                raise ServerError(f"{self.address} sent a part of the result; run the model again")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _pieces(first: bytes, path: Path, last: bytes) -> Iterator[bytes]:
    yield first
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
    yield last


def _in_quotes(text: str) -> str:
    """Escape a name for the header of a form's part, as browsers do."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read(PIECE).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500] or error.reason


def form_fields(options: str, model: str) -> dict[str, str]:
    """Return the fields of a request from the text ``name=value name=value``. A value with spaces needs quotes."""
    fields = {"output_format": "tiff", **({"model": model} if model else {})}
    for option in shlex.split(options):
        name, equals, text = option.partition("=")
        if not equals:
            raise ServerError(f"options are written as name=value, such as tile=512 overlap=64; got {option!r}")
        fields[name] = text
    if fields["output_format"] != "tiff":
        raise ServerError(f"the result is loaded as GeoTIFF; leave out output_format={fields['output_format']}")
    if "," in fields.get("processor", ""):
        raise ServerError(f"one result is loaded; name one processor, got {fields['processor']}")
    return fields


def style(classes: list[dict[str, Any]]) -> str:
    """Return a QGIS style with the name and colour of each class of a job's result."""
    entries = "".join(
        f'<paletteEntry value="{int(entry["id"])}" color={quoteattr(entry["color"])} alpha="255"'
        f" label={quoteattr(str(entry['id'] if entry['name'] is None else entry['name']))}/>\n"
        for entry in classes
    )
    return (
        f"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n{OURS}\n"
        '<qgis version="3.22.0" styleCategories="Symbology"><pipe><rasterrenderer type="paletted" band="1" opacity="1"'
        f' alphaBand="-1"><colorPalette>\n{entries}</colorPalette></rasterrenderer></pipe></qgis>\n'
    )


def write_style(target: Path, classes: list[dict[str, Any]] | None) -> None:
    """Write the style of a GeoTIFF, or remove an older one. A style that a user has saved in QGIS is kept."""
    path = target.with_suffix(".qml")
    if path.exists() and OURS not in path.read_text(errors="replace"):
        return
    if classes:
        path.write_text(style(classes))
    else:
        path.unlink(missing_ok=True)


def one_file(source: str) -> bool:
    """Return whether a layer's source is a local file without the mask, world file or ``.aux.xml`` that GDAL reads."""
    path = Path(source)
    beside = [f"{path}.aux.xml", f"{path}.msk", *(path.with_suffix(end) for end in (".tfw", ".wld", ".jgw", ".pgw"))]
    return path.is_file() and not any(map(os.path.exists, beside))


class RunModel(QgsProcessingAlgorithm):
    """Run a model of a vllm_mmout server on a raster layer."""

    SERVER, AUTH, MODEL, LAYER, EXTENT, OPTIONS, OUTPUT = (
        "SERVER",
        "AUTH",
        "MODEL",
        "LAYER",
        "EXTENT",
        "OPTIONS",
        "OUTPUT",
    )

    def createInstance(self) -> RunModel:  # noqa: N802 - QGIS's name
        """Return a new object of this class."""
        return RunModel()

    def name(self) -> str:
        """Return the id of the algorithm."""
        return "vllm_mmout_run"

    def displayName(self) -> str:  # noqa: N802 - QGIS's name
        """Return the title in the toolbox."""
        return "Run a model"

    def group(self) -> str:
        """Return the title of the group in the toolbox."""
        return "vllm_mmout"

    def groupId(self) -> str:  # noqa: N802 - QGIS's name
        """Return the id of the group."""
        return "vllm_mmout"

    def shortHelpString(self) -> str:  # noqa: N802 - QGIS's name
        """Return the help beside the form."""
        return (
            "Sends a raster layer, or the part of it within the extent, to a server that was started by"
            " 'vllm-mmout serve MODEL'. The result is a GeoTIFF with the names and colours of its classes.\n\n"
            "Options are those of a request, such as: tile=512 overlap=64 bands=1,2,3\n\n"
            "Authentication: a configuration of the type API Header with Authorization and 'Bearer KEY'."
        )

    def initAlgorithm(self, configuration: Any = None) -> None:  # noqa: N802 - QGIS's name
        """Declare the parameters."""
        del configuration
        for parameter in (
            QgsProcessingParameterString(self.SERVER, "Server", "http://localhost:8000"),
            QgsProcessingParameterAuthConfig(self.AUTH, "Authentication", optional=True),
            QgsProcessingParameterString(self.MODEL, "Model", optional=True),
            QgsProcessingParameterRasterLayer(self.LAYER, "Layer"),
            QgsProcessingParameterExtent(self.EXTENT, "Extent", optional=True),
            QgsProcessingParameterString(self.OPTIONS, "Options", optional=True),
            QgsProcessingParameterRasterDestination(self.OUTPUT, "Result"),
        ):
            self.addParameter(parameter)

    def processAlgorithm(self, parameters: Any, context: Any, feedback: Any) -> dict[str, str]:  # noqa: N802 - QGIS's name
        """Run the model, and return the path of the result and the name of the job."""
        try:
            return self._run(parameters, context, feedback)
        except (ServerError, OSError) as error:
            raise QgsProcessingException(str(error)) from error

    def _run(self, parameters: Any, context: Any, feedback: Any) -> dict[str, str]:
        layer = self.parameterAsRasterLayer(parameters, self.LAYER, context)
        extent = self.parameterAsExtent(parameters, self.EXTENT, context, layer.crs())
        target = Path(self.parameterAsOutputLayer(parameters, self.OUTPUT, context))
        if target.suffix.lower() not in (".tif", ".tiff"):
            raise ServerError(f"the result is a GeoTIFF; name a file that ends in .tif, got {target.name!r}")
        server = Server(self.parameterAsString(parameters, self.SERVER, context), self._headers(parameters, context))
        options = self.parameterAsString(parameters, self.OPTIONS, context)
        fields = form_fields(options, self.parameterAsString(parameters, self.MODEL, context))
        with tempfile.TemporaryDirectory(prefix="vllm_mmout_") as folder:
            job = server.submit(_file(layer, extent, Path(folder)), fields)
        feedback.pushInfo(f"job {job['id']}")
        done = server.wait(job, feedback.setProgress, feedback.isCanceled)
        if done is None:
            return {}
        for warning in done.get("warnings", []):
            feedback.pushWarning(warning)
        server.download(done, target)
        write_style(target, done["outputs"][0]["classes"])
        return {self.OUTPUT: str(target), "JOB": done["id"]}

    def _headers(self, parameters: Any, context: Any) -> dict[str, str]:
        """Return the headers of the chosen authentication."""
        name = self.parameterAsString(parameters, self.AUTH, context)
        config = QgsAuthMethodConfig()
        if not name:
            return {}
        if not QgsApplication.authManager().loadAuthenticationConfig(name, config, True):
            raise ServerError(f"there is no authentication {name!r}; choose one of those in the list")
        if config.method() != "APIHeader":
            raise ServerError(f"the authentication must be of the type API Header, got {config.method()}")
        return dict(config.configMap())


def _file(layer: Any, extent: Any, folder: Path) -> Path:
    """Return a file with the pixels of a layer within an extent: the layer's own file, or a copy in ``folder``."""
    if layer.providerType() != "gdal":
        raise ServerError(
            f"the layer must be a raster file, got one of the kind {layer.providerType()}; export it first"
        )
    if extent.isNull() and one_file(layer.source()):
        return Path(layer.source())
    window = {}
    if not extent.isNull():
        extent = extent.intersect(layer.extent())  # GDAL would fill the rest of the extent with zeros
        if extent.isEmpty():
            raise ServerError("the extent is beyond the layer; choose another extent")
        window = {"projWin": (extent.xMinimum(), extent.yMaximum(), extent.xMaximum(), extent.yMinimum())}
    gdal.SetConfigOption("GDAL_TIFF_INTERNAL_MASK", "YES")
    copy = folder / f"{Path(layer.source()).stem or 'layer'}.tif"
    options = ["COMPRESS=DEFLATE", "TILED=YES", "BIGTIFF=IF_SAFER"]
    if gdal.Translate(str(copy), layer.source(), format="GTiff", creationOptions=options, **window) is None:
        raise ServerError(f"the layer cannot be copied: {gdal.GetLastErrorMsg()}")
    return copy
