"""Use STAC items, item collections and searches as inputs, and describe results as STAC items and collections."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="stac",
    inputs="vllm_mmout.wings.stac.item_inputs",
    describe="vllm_mmout.wings.stac.result_files",
    command="vllm_mmout.wings.stac.collection_command",
    run="vllm_mmout.wings.stac.run_search",
    public="vllm_mmout.wings.stac.public",
    routes="vllm_mmout.wings.stac.item_routes:ItemRoutes",
)
