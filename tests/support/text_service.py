"""Our routes on an app without an engine, whose model makes a picture of a text."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class TextEngine:
    """Answers any text with one picture."""

    def __init__(self):
        processor = SimpleNamespace(formats=lambda params: None)
        binding = SimpleNamespace(
            model="painter",
            inputs=SimpleNamespace(opens_files=False, takes="text"),
            choice=SimpleNamespace(pick=lambda asked: ("image",)),
            own_inputs=lambda params: None,
            check_params=lambda params: None,
            processors={"image": processor},
        )
        self.output_processor = SimpleNamespace(binding=binding)

    async def generate(self, data, params, request_id, **_):
        """One finished result."""
        from vllm_mmout import ImageOutput

        yield SimpleNamespace(finished=True, progress=None, outputs=ImageOutput(np.full((8, 8, 3), 99, np.uint8)))


def text_app():
    """The app; its model is called ``painter``."""
    from fastapi import FastAPI

    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.serving.image_routes import Slots
    from vllm_mmout.serving.inputs.sources import Sources
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.routes import ServingPlugin
    from vllm_mmout.serving.service import ForwardService

    options = ServingOptions()
    app = FastAPI()
    ServingPlugin().attach_router(app)
    registry = SimpleNamespace(is_base_model=lambda name: name == "painter", model_name=lambda: "painter")
    models = SimpleNamespace(registry=registry, lora_requests={}, base_model_paths=[SimpleNamespace(name="painter")])
    store = ResultStore.temporary(options.result_ttl, options.max_results)
    sources = Sources(options, local_path=None, domains=None)
    observer = Observer()
    app.state.mmout = ForwardService(TextEngine(), models, options, store, observer, sources)
    app.state.mmout_slots = Slots(options.max_waiting)
    return app
