"""Small networks as archives of ``torch.export``, and archives that have been tampered with."""

from __future__ import annotations

import io
import json
import zipfile
from collections import OrderedDict

import torch
from torch import nn


class Bands(nn.Module):
    """Four bands to three classes, at the same size."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, image):
        features = self.norm(self.down(image)).relu()
        return nn.functional.interpolate(self.head(features), size=image.shape[-2:], mode="bilinear")


class LastBands(Bands):
    """The same with the bands on the last axis."""

    def forward(self, image):
        return super().forward(image.permute(0, 3, 1, 2))


class Dated(nn.Module):
    """Two bands at three dates to one value a pixel."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv3d(2, 1, (3, 1, 1))

    def forward(self, image):
        return self.mix(image)[:, :, 0]


class Pair(nn.Module):
    """Two vectors to a dict of two."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, first, second):
        mixed = self.layer(torch.cat([first, second], dim=1))
        return {"mixed": mixed, "sum": first + second}


def archive(folder, network, *example, batch=torch.export.Dim.DYNAMIC, sides=None, config=None, name="model.pt2"):
    """Write a folder with an archive, and return the plain network, which all tests share."""
    shapes = [tuple(one.shape) for one in example]
    key = network, *shapes, repr(batch), repr(sides)
    if key not in _EXPORTED:
        _EXPORTED[key] = _exported(network, shapes, batch, sides)
    made, content = _EXPORTED[key]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return made


_EXPORTED = {}
"""Network and archive by what was exported: each export takes half a second."""


def _exported(network, shapes, batch, sides):
    """Return a network with random weights, and the bytes of its archive."""
    torch.manual_seed(7)
    made, example = network().eval(), tuple(map(torch.rand, shapes))
    for buffer in made.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    free = {0: batch, **dict.fromkeys(range(2, len(shapes[0])) if sides else (), sides)}
    free = {axis: size for axis, size in free.items() if size is not None}
    content = io.BytesIO()
    torch.export.save(torch.export.export(made, example, dynamic_shapes=tuple(free for _ in example)), content)
    return made, content.getvalue()


def rewritten(file, change, program=lambda _: None, add=()):
    """Write an archive anew: ``change`` gets and gives the table of its files, ``program`` changes its graph."""
    with zipfile.ZipFile(file) as archive_:
        files = {name: archive_.read(name) for name in archive_.namelist()}
    root = next(iter(files)).partition("/")[0]
    graph = json.loads(files[f"{root}/models/model.json"])
    program(graph)
    files[f"{root}/models/model.json"] = json.dumps(graph).encode()
    files = {**change(files), **{f"{root}/{name}": content for name, content in add}}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive_:
        for name, content in files.items():
            archive_.writestr(name, content)


def item(bands, **entries):
    """An item of MLM about a model of classes."""
    given = {"name": "image", "bands": bands, "input": {"shape": [-1, 4, 64, 64], "data_type": "float32"}}
    classes = [{"value": number, "name": name} for number, name in ((1, "field"), (0, "other"), (2, "edge"))]
    result = {"name": "map", "tasks": ["semantic-segmentation"], "classification:classes": classes}
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": ["https://stac-extensions.github.io/mlm/v1.4.0/schema.json"],
        "id": "fields",
        "geometry": None,
        "links": [],
        "properties": {"datetime": None, "mlm:name": "fields", "mlm:input": [given | entries], "mlm:output": [result]},
        "assets": {"weights": {"href": "https://example.com/fields.pt2", "roles": ["mlm:model"]}},
    }


class Options(nn.Module):
    """A dict of vectors, a constant and a keyword; a nested answer with what is no tensor."""

    def forward(self, pair, factor, *, shift):
        return {"scaled": pair["a"] * factor + shift, "rest": [pair["b"], None, 7]}


class Words(nn.Module):
    """Token ids of any number, and a weight in bfloat16, to a vector; the one output has a name."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids, weight):
        return OrderedDict(vector=self.table(ids).sum(1) * weight.float())
