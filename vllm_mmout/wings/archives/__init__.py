"""Serve models exported by ``torch.export.save``: a folder with a ``.pt2`` archive and a JSON file.

The JSON file is a ``config.json`` of ours, or an item of STAC's Machine Learning Model extension (MLM). Nothing in an
archive is unpickled and none of its code is run. Content that would lead to either is refused.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="archives",
    folders="vllm_mmout.wings.archives.folders:as_ours",
    hooks="vllm_mmout.wings.archives.hooks:ARCHIVE_HOOKS",
)
