"""What is wrong with an engine's output processors is said before any process of it is started."""

from __future__ import annotations

import json
import multiprocessing.process
import subprocess

import engine_scripts
import pytest

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, MMOutError
from vllm_mmout.errors import OptionError, RegistrationError

pytestmark = pytest.mark.engine

WRONG = {
    "an unknown processor": (
        {"output_processor": "segmentatoin"},
        RegistrationError,
        ["'segmentatoin'", "did you mean 'segmentation'", "tensor"],
    ),
    "two of which one is unknown": ({"output_processor": ["tensor", "masks"]}, RegistrationError, ["'masks'", "image"]),
    "a module that is not there": ({"output_processor": "no_such_module:Mask"}, RegistrationError, ["no_such_module"]),
    "a class that is not there": ({"output_processor": "json:Mask"}, RegistrationError, ["'json'", "'Mask'"]),
    "no output processor": ({"output_processor": "json:JSONDecoder"}, RegistrationError, ["subclass", "JSONDecoder"]),
    "an unknown option": (
        {"decode_thread": 2},
        OptionError,
        ["'decode_thread'", "did you mean 'decode_threads'", "class_names"],
    ),
    "an option of another processor": (
        {"output_processor": "tensor", "class_names": ["land", "water"]},
        OptionError,
        ["'class_names'", "decode_threads"],
    ),
    "no table": (3, OptionError, ["must be a table", "3"]),
    "a number for a name": ({"output_processor": 5}, OptionError, ["output_processor", "5"]),
    "a word for a number": ({"decode_threads": "four"}, OptionError, ["decode_threads", "int"]),
    "a number out of range": ({"decode_timeout_s": 0}, OptionError, ["decode_timeout_s", "> 0"]),
    "a value that the processor refuses": ({"palette": "blue"}, OptionError, ["palette", "blue"]),
}


@pytest.fixture
def started(monkeypatch):
    """What was started while a test ran: processes of multiprocessing, and others."""
    found = []

    def process(self):
        found.append(self)
        raise AssertionError(f"{self} was started")

    def popen(self, args, *_, **__):
        found.append(args)
        raise AssertionError(f"{args} was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", process)
    monkeypatch.setattr(subprocess.Popen, "__init__", popen)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    return found


@pytest.fixture(scope="module")
def inspected(water_index):
    """A model's class is looked at by vLLM in a process of its own, once: here, before anything is counted."""
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs(model=water_index).create_engine_config()


def with_llm(model, table):
    from vllm import LLM

    return LLM(model, additional_config={"mmout": table}, gpu_memory_utilization=0.3)


def with_async_llm(model, table):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=model, additional_config={"mmout": table}, gpu_memory_utilization=0.3)
    )


@pytest.mark.parametrize("make", [with_llm, with_async_llm])
@pytest.mark.parametrize(("table", "kind", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_table_starts_nothing(inspected, started, water_index, make, table, kind, says):
    """The error of the engine's table is raised as it is, by both kinds of engine, and no process was started."""
    with pytest.raises(MMOutError) as caught:
        make(water_index, table)
    assert isinstance(caught.value, kind)
    assert [part for part in says if part not in str(caught.value)] == []
    assert started == []


def test_a_right_table_would_start_processes(inspected, started, water_index):
    """The control of the test above: with nothing wrong the engine does start one."""
    with pytest.raises(AssertionError, match="was started"):
        with_llm(water_index, {"decode_threads": 1})
    assert started


DECORATORS = {
    "register_input_mapper": lambda registry: registry.register_image_input_mapper(),
    "register_max_tokens": lambda registry: registry.register_max_image_tokens(576),
    "register_dummy_data": lambda registry: registry.register_dummy_data(dict),
    "register_input_processor": lambda registry: registry.register_input_processor(dict),
}


@pytest.fixture
def generating(inspected, tmp_path, monkeypatch):
    """Makes the folder of a model that generates, of a class of its own that is decorated."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    def make(*decorators, bases=()):
        model = type("GeneratingNet", (LlamaForCausalLM, *bases), {})
        for decorate in decorators:
            model = decorate(MULTIMODAL_INPUT_REGISTRY)(model)
        ModelRegistry.register_model("GeneratingNet", model)
        engine_scripts.make_llama(tmp_path)
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["GeneratingNet"]}))
        return str(tmp_path)

    monkeypatch.setattr(MULTIMODAL_INPUT_REGISTRY, "_models", {})
    yield make
    ModelRegistry.models.pop("GeneratingNet", None)


@pytest.mark.parametrize("processors", [{}, {"output_processor": "vq_image"}], ids=["text alone", "pictures"])
@pytest.mark.parametrize("make", [with_llm, with_async_llm])
@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorator_that_nothing_would_call_starts_nothing(generating, started, name, make, processors):
    """On a model that takes no pictures, the error names the decorators and the remedy."""
    folder = generating(DECORATORS[name])
    with pytest.raises(RegistrationError) as caught:
        make(folder, processors)
    for part in ("GeneratingNet generates and takes no pictures", name, "never be called", "SupportsMultiModal"):
        assert part in str(caught.value)
    assert started == []


def test_all_decorators_that_nothing_would_call_are_named(generating, started):
    """Each of a class, and those of its bases."""
    folder = generating(*DECORATORS.values())
    with pytest.raises(RegistrationError) as caught:
        with_llm(folder, {})
    assert ", ".join(DECORATORS) in str(caught.value)


def of_its_own(registry):
    """Return a decorator that registers a processor through vLLM's present registry."""
    from vllm.multimodal.processing import BaseProcessingInfo

    info = type("Info", (BaseProcessingInfo,), {"get_supported_mm_limits": lambda self: {"image": 1}})
    return registry.register_processor(dict, info=info, dummy_inputs=dict)


@pytest.mark.parametrize(
    ("decorators", "says"),
    [
        ([DECORATORS["register_input_mapper"], of_its_own], "has a processor of its own .* register_input_mapper"),
        ([of_its_own, DECORATORS["register_max_tokens"]], "has a processor of its own .* register_max_tokens"),
        ([DECORATORS["register_input_mapper"]], "decorate it with @MULTIMODAL_REGISTRY.register_max_image_tokens"),
    ],
)
def test_decorators_that_cannot_make_inputs_start_nothing(generating, started, decorators, says):
    """An engine does not start if decorators are missing, or stand beside vLLM's ``register_processor``."""
    from vllm.model_executor.models.interfaces import SupportsMultiModal

    folder = generating(*decorators, bases=(SupportsMultiModal,))
    with pytest.raises(RegistrationError, match=says):
        with_llm(folder, {})
    assert started == []


def test_a_model_that_generates_without_decorators_would_start_processes(generating, started):
    """The control of the tests above."""
    folder = generating()
    with pytest.raises(AssertionError, match="was started"):
        with_llm(folder, {})
    assert started
