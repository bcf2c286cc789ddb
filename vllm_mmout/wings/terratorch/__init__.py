"""Model folders of TerraTorch, served by our adapter and not by vLLM's class of that name.

That class gives all requests of a batch the location of the first, cannot build every task, and a failing ``forward``
ends the engine. Frontends import no TerraTorch. ``"output_processor": "none"`` leaves a folder to vLLM's class.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="terratorch",
    models={"Terratorch": "vllm_mmout.wings.terratorch.model:TerratorchModel"},
    model_families={"Terratorch": "vllm_mmout.wings.terratorch.config:TerratorchFolders"},
)
