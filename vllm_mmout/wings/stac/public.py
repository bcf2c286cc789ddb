"""Public names of the module ``vllm_mmout.stac``."""

from __future__ import annotations

from vllm_mmout.wings.stac.folder_collections import collection
from vllm_mmout.wings.stac.mosaics import mosaics
from vllm_mmout.wings.stac.result_files import write_item
from vllm_mmout.wings.stac.result_items import item_of
from vllm_mmout.wings.stac.searching import search

__all__ = ["collection", "item_of", "mosaics", "search", "write_item"]
