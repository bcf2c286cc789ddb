"""Our routes on an app in this process, of an engine that makes a picture of any text, or of a real one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np


class TextEngine:
    """Answers any text with one picture."""

    def __init__(self):
        processor = SimpleNamespace(formats=lambda params: None)
        binding = SimpleNamespace(
            model="painter",
            inputs=SimpleNamespace(opens_files=False, takes="text", fields=()),
            choice=SimpleNamespace(pick=lambda asked: ("image",)),
            own_inputs=lambda params: None,
            check_params=lambda params: None,
            processors={"image": processor},
        )
        self.output_processor = SimpleNamespace(binding=binding)

    async def generate(self, data, params, request_id, **_):
        """One finished result."""
        from vllm_mmout import ImageOutput

        picture = ImageOutput(np.full((8, 8, 3), 99, np.uint8))
        yield SimpleNamespace(finished=True, progress=None, assumed=(), outputs=picture)


class EngineHere:
    """Asks an ``LLM`` of this process as the routes ask an ``AsyncLLM``: one request after the other, no previews."""

    def __init__(self, llm):
        self._llm = llm
        self.output_processor = llm.llm_engine.output_processor

    async def generate(self, data, params, request_id, **_):
        """Yield the finished result, or raise its error."""
        (result,) = await asyncio.to_thread(self._llm.generate, [data], params, use_tqdm=False)
        if result.error is not None:
            raise result.error
        yield result


def text_app(engine=None, name="painter"):
    """Return our routes on an app.

    Args:
        engine: an `EngineHere`, whose app has ``/pooling`` too; None: a new `TextEngine`.
        name: the model's name in requests.

    """
    from fastapi import FastAPI

    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.serving.image_routes import Slots
    from vllm_mmout.serving.image_service import ImageService
    from vllm_mmout.serving.inputs.sources import Sources
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.routes import ServingPlugin
    from vllm_mmout.wing import extensions

    options = ServingOptions()
    app = FastAPI()
    if engine is not None:
        app.add_api_route("/pooling", _no_pooling, methods=["POST"])  # in vLLM's place
    app.state.args = SimpleNamespace(api_key=None)
    ServingPlugin().attach_router(app)
    registry = SimpleNamespace(is_base_model=lambda asked: asked == name, model_name=lambda: name)
    models = SimpleNamespace(registry=registry, lora_requests={}, base_model_paths=[SimpleNamespace(name=name)])
    store = ResultStore.temporary(options.result_ttl, options.max_results)
    sources = Sources(options, local_path=None, domains=None)
    observer = Observer()
    kinds = () if engine is None else (made().forward_service(engine) for made in extensions("routes"))
    service = next((kind for kind in kinds if kind is not None), ImageService)
    app.state.mmout = service(engine or TextEngine(), models, options, store, observer, sources)
    app.state.mmout_slots = Slots(options.max_waiting)
    return app


async def _no_pooling():
    """Stand for vLLM's own ``/pooling``, which the model of these tests does not have."""
    raise NotImplementedError
