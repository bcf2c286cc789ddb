"""Describe the models of a server as processes of OGC API Processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OF_MODELS, OF_STEPS, OutputParams
from vllm_mmout.params.reading import ReadingOptions
from vllm_mmout.processors.base import OwnInputsProcessor, formats_for
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.body import MAX_FILES
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, SOUND_TYPES, UNKNOWN
from vllm_mmout.version import __version__
from vllm_mmout.wings.jobs.ogc.exceptions import NO_SUCH_PROCESS
from vllm_mmout.wings.jobs.ogc.links import EXECUTE, ROOT, link, url
from vllm_mmout.wings.jobs.server.job_schemas import SCENES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.serving.request.fields import Fields
    from vllm_mmout.serving.service import ForwardService

IMAGE: Final = "image"
BBOX: Final = "bbox"
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_OUTPUTS: Final = 'choose it by outputs, such as {"outputs": {"NAME": {"format": {"mediaType": "image/tiff"}}}}'
_ELSEWHERE: Final = "it is no input of a process; leave it out"
INPUTS: Final = (
    SCENES.without(("processor", "output_format"), _OUTPUTS, path="a process")
    .without(("model",), "the process is the model; leave it out", path="a process")
    .without(("prompt", "user", "safety_identifier", "quality", "n"), _ELSEWHERE, path="a process", apart=(IMAGE,))
)
"""Inputs of an OGC process besides the image. `inputs_of` returns the subset that a model accepts."""
_RASTER_OPTIONS: Final = frozenset({*ReadingOptions.__struct_fields__, "tile", "overlap", "blend"}) - {*OF_MODELS}
"""Names of the options that apply only to models with raster input."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
JSON_FORMATS: Final = ("json", "geojson")
"""Names of the result formats that are JSON. JSON responses contain such files unchanged, and all others as base64."""
_BBOX: Final = {
    "type": "object",
    "format": "ogc-bbox",
    "required": ["bbox"],
    "properties": {
        "bbox": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
        "crs": {"type": "string", "format": "uri", "enum": [CRS84], "default": CRS84},
    },
}


@dataclass(frozen=True, slots=True)
class Process:
    """Model or LoRA adapter of the server, described as a process of OGC API Processes."""

    id: str
    model: str
    """Name under which the model, or the LoRA adapter, is served."""
    service: ForwardService

    @property
    def outputs(self) -> Mapping[str, OutputProcessor]:
        """Output processors of the model by name. Each of them is an output of this OGC process."""
        return self.service.binding.processors

    def formats(self, output: str) -> dict[str, str]:
        """Return a dict from media type to format name, for the file formats of an output. The default is first."""
        processor, names = self.outputs[output], list[str]()
        for choice in getattr(processor, "outputs", ()) or (None,):
            try:
                formats = formats_for(processor, OutputParams(output=choice))
            except MMOutError:  # the choice needs further options
                continue
            names += () if formats is None else formats.values()
        by_type: dict[str, str] = {}
        for name in names:
            by_type.setdefault((MEDIA_TYPES | SOUND_TYPES).get(name, UNKNOWN), name)
        return by_type


def processes(service: ForwardService) -> dict[str, Process]:
    """Return a dict from process id to OGC process. Each process is a model or LoRA adapter of the server.

    The dict is empty if the model does not accept files as input, because the input of a process is a file.
    """
    inputs = service.binding.inputs
    if inputs is not None and not inputs.opens_files:
        return {}
    made: dict[str, Process] = {}
    for name in (*(path.name for path in service.models.base_model_paths), *service.models.lora_requests):
        safe = safe_id(name)
        number = sum(process.id == safe or process.id.startswith(f"{safe}~") for process in made.values())
        process_id = f"{safe}~{number + 1}" if number else safe
        made[process_id] = Process(process_id, name, service)
    return made


def safe_id(model: str) -> str:
    """Return a model's name with unsafe characters replaced, so that it fits into the path of a URL."""
    return _UNSAFE.sub("-", model).strip("-.") or "model"


def process_id_of(model: str, served: Mapping[str, Process]) -> str:
    """Return a model's process id. If this server lacks the model, derive the id from the model's name."""
    return next((process.id for process in served.values() if process.model == model), safe_id(model))


def process_in(request: Request, service: ForwardService) -> Process:
    """Return the process in the request's path, or raise an ApiError (404) if it does not exist."""
    served = processes(service)
    process = served.get(str(request.path_params["processID"]))
    if process is None:
        known = ", ".join(served) or "none"
        raise ApiError(404, f"there is no such process (known: {known})", kind=NO_SUCH_PROCESS, param="processID")
    return process


def summary(request: Request, process: Process) -> dict[str, Any]:
    """Return the short description of a process in the form of OGC's schema ``processSummary.yaml``."""
    path = f"{ROOT}/processes/{process.id}"
    binding = process.service.binding
    takes = "pictures" if binding.inputs is None else binding.inputs.takes
    gives = " and ".join(dict.fromkeys(processor.modality for processor in process.outputs.values()))
    return {
        "id": process.id,
        "version": __version__,
        "title": process.model,
        "description": f"Runs the model {process.model}. It takes {takes}, and answers with {gives}.",
        "jobControlOptions": ["sync-execute", "async-execute", "dismiss"],
        "outputTransmission": ["value", "reference"],
        "links": [
            link(url(request, path), "self", "description of the process"),
            link(url(request, f"{path}/execution"), EXECUTE, "execution of the process"),
        ],
    }


def description(request: Request, process: Process) -> dict[str, Any]:
    """Return the full description of a process in the form of OGC's schema ``process.yaml``."""
    fields = inputs_of(process)
    options = {
        name: {
            "title": name,
            "description": str(option.meta.description or ""),
            "minOccurs": 0,
            "maxOccurs": 1,
            "schema": _schema(process, name, option.schema, option.default),
        }
        for name, option in fields.options.items()
    }
    outputs = {name: {"title": name, "schema": _output_schema(process.formats(name))} for name in process.outputs}
    return summary(request, process) | {"inputs": {IMAGE: _image(), **options}, "outputs": outputs}


def inputs_of(process: Process) -> Fields:
    """Return the inputs that a process accepts besides the image. The inputs depend on the model."""
    binding = process.service.binding
    own = next((each for each in process.outputs.values() if isinstance(each, OwnInputsProcessor)), None)
    names = {*INPUTS.options}
    if own is not None:
        names -= {name for name in OutputParams.__struct_fields__ if name not in own.honours}
    elif binding.inputs is None or binding.inputs.rasters is None:
        names -= _RASTER_OPTIONS
    taken = frozenset[str]() if binding.inputs is None else binding.inputs.options
    names -= {*OF_MODELS, *OF_STEPS} - taken
    if not any(processor.outputs for processor in process.outputs.values()):
        names.discard("output")
    left_out = [name for name in INPUTS.options if name not in names]
    return INPUTS.without(left_out, "the model does not take it; leave it out", path="this process", apart=(IMAGE,))


def _image() -> dict[str, Any]:
    return {
        "title": IMAGE,
        "description": (
            "The picture or raster: base64, or a link (href) to a file that the server may read. Several are one input"
            " of several files. The content of a file says its format."
        ),
        "minOccurs": 1,
        "maxOccurs": MAX_FILES,
        "schema": {"type": "string", "contentEncoding": "base64", "contentMediaType": "application/octet-stream"},
    }


def _schema(process: Process, name: str, schema: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Return an option's schema in the form that OpenAPI 3.0 requires, with its default value."""
    made = {key: value for key, value in schema.items() if key != "description"}
    if name == "output":
        outputs = dict.fromkeys(choice for processor in process.outputs.values() for choice in processor.outputs)
        made |= {"enum": list(outputs)}
    if name == BBOX:
        return {"oneOf": [_BBOX, made]}
    return made if default in (None, msgspec.NODEFAULT) else made | {"default": default}


def _output_schema(formats: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON schema of an output. ``formats`` maps its possible media types to format names."""
    schemas = [
        {"type": "object", "contentMediaType": media_type}
        if name in JSON_FORMATS
        else {"type": "string", "contentEncoding": "base64", "contentMediaType": media_type}
        for media_type, name in (formats or {UNKNOWN: ""}).items()
    ]
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
