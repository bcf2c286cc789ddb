"""Archives of ``torch.export.save``: a ``.pt2`` file, and a JSON file beside it, are a model.

The JSON is ours, or an item of STAC's Machine Learning Model extension (MLM). Nothing in an archive is unpickled, and
no code in it is run: what could do either is refused.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="archives",
    folders="vllm_mmout.wings.archives.folders:as_ours",
    hooks="vllm_mmout.wings.archives.hooks:ARCHIVE_HOOKS",
)
