"""What docs/processors.md and docs/formats.md show works, and what they list is what there is."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

from vllm_mmout import OutputParams
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import OptionError
from vllm_mmout.geo.tiling.grid import TileGrid
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.processors import Part
from vllm_mmout.processors.parts import Parts
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.processor_names import BUILT_IN
from vllm_mmout.registry.resolve import resolve
from vllm_mmout.wing import wings

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDE = (DOCS / "processors.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0].strip(): part for part in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]}
"""Heading -> text."""
NAMES = [*BUILT_IN, *(name for wing in wings() for name in wing.output_processors)]
"""The processors that any model can be given by name."""


@pytest.fixture(autouse=True)
def _decoders(tmp_path, monkeypatch):
    """The folders of decoders that snippets name, with the sizes of the published ones; of them the config is read."""
    monkeypatch.chdir(tmp_path)
    for name, weights, config in (
        ("emu3-decoder", "model.safetensors", {"model_type": "emu3_vqgan", "codebook_size": 32768}),
        ("snac_24khz", "pytorch_model.bin", {"sampling_rate": 24000, "vq_strides": [4, 2, 1], "codebook_size": 4096}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / weights).touch()


def code_blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def created(snippet):
    """The processors by name that a ``config.json`` with this snippet gives a model."""
    config = json.loads(snippet)
    choice = resolve(
        OutputRegistry(),
        engine_table=None,
        config=config,
        architectures=["AnyModel"],
        model_class=lambda: None,
        settings=EngineSettings.__struct_fields__,
    )
    return choice.create(config)


def options_in(section):
    """Option -> default of the table in a section."""
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, flags=re.MULTILINE)
    return {option: json.loads(default) for option, default in rows}


def options_of(processor):
    """Option -> default of a constructor, as JSON has it."""
    return {
        parameter.name: list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        for parameter in inspect.signature(processor).parameters.values()
    }


def test_every_built_in_processor_has_a_section_of_its_name():
    """Nobody has to read code to learn of a processor."""
    assert [heading for heading in SECTIONS if heading in NAMES] == NAMES


@pytest.mark.engine
@pytest.mark.parametrize("snippet", code_blocks(GUIDE, "json"))
def test_every_json_snippet_makes_its_processors(snippet):
    """A snippet is a table "mmout" of config.json; it names built-in processors and only options that they take."""
    assert list(json.loads(snippet)) == ["mmout"]
    assert created(snippet)


def test_a_snippet_with_an_unknown_option_would_be_found():
    """The way on which snippets are checked refuses an option that nobody takes."""
    with pytest.raises(OptionError, match="unknown option 'palete'"):
        created('{"mmout": {"output_processor": "segmentation", "palete": ["#000000"]}}')


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
def test_a_section_shows_its_processor_with_all_its_options(name):
    """A section has a snippet that makes its processor, and its table names the options with their defaults."""
    section = SECTIONS[name]
    made = [created(snippet).get(name) for snippet in code_blocks(section, "json")]
    assert any(made)
    assert options_in(section) == options_of(type(made[0]))
    for output in made[0].outputs:
        assert f'`"{output}"`' in section


@pytest.mark.engine
@pytest.mark.parametrize("snippet", code_blocks(GUIDE, "python"))
def test_every_python_snippet_runs(snippet, tmp_path, monkeypatch):
    """A snippet runs as it stands, in a folder of its own."""
    pytest.importorskip("torch", reason="processors are given torch tensors")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "<docs/processors.md>", "exec"), {})  # noqa: S102 - the snippets are our own


@pytest.mark.engine
def test_the_processor_that_averages_before_it_decides_does_so():
    """The own processor of docs/own-models.md: joined from blended tiles it decides as it would on the whole."""
    torch = pytest.importorskip("torch", reason="processors are given torch tensors")
    page = (DOCS / "own-models.md").read_text(encoding="utf-8")
    snippet = next(block for block in code_blocks(page, "python") if "params.blends" in block)
    names = {}
    exec(compile(snippet, "<docs/own-models.md>", "exec"), names)  # noqa: S102 - the snippet is our own
    processor, grid = names["LandCover"](), TileGrid(50, 70, 32, 8)
    logits = torch.tensor(np.random.default_rng(0).normal(size=(1, 4, 50, 70)), dtype=torch.float32)
    params = OutputParams(overlap=8).of_part()
    parts = []
    for index in range(len(grid)):
        window = grid.window(index)
        raw = processor.reduce(logits[:, :, window.rows, window.cols], params)[0]
        parts.append(Part(index, window, processor.decode(raw, params)))
    joined = processor.assemble(Parts(parts, grid=grid, source=Source(size=(50, 70))), params)
    assert np.array_equal(joined.array[0], logits[0].argmax(0).numpy())
    assert (joined.array.dtype, joined.nodata) == (np.uint8, 255)
    whole = processor.decode(processor.reduce(logits, OutputParams())[0], OutputParams())
    assert np.array_equal(joined.array, whole.array)


@pytest.mark.engine
@pytest.mark.parametrize("size", [(60, 60), (24, 30)])
def test_the_map_of_classes_is_cleaned_up(size):
    """The subclass of docs/processors.md cleans scenes and single inputs, and polygons and areas agree with classes."""
    torch = pytest.importorskip("torch", reason="processors are given torch tensors")
    snippet = next(block for block in code_blocks(GUIDE, "python") if "sieve" in block)
    names = {}
    exec(compile(snippet, "<docs/processors.md>", "exec"), names)  # noqa: S102 - the snippet is our own
    processor = names["CleanClasses"](least=9, class_names=["land", "water"])
    water = np.zeros(size, bool)
    water[2:4, 2:4] = water[10:20, 20:26] = True  # 4 pixels, and 60 across two tiles of the scene
    logits = torch.from_numpy(np.stack([~water, water])[None].astype(np.float32))
    grid = TileGrid(*size, 32, 8)

    def result(output):
        params = OutputParams(output=output, overlap=8)
        if len(grid) == 1:
            whole = processor.decode(processor.reduce(logits, params)[0], params)
            return processor.assemble(iter([Part(0, None, whole)]), params)
        params, parts = params.of_part(), []
        for index in range(len(grid)):
            window = grid.window(index)
            raw = processor.reduce(logits[:, :, window.rows, window.cols], params)[0]
            parts.append(Part(index, window, processor.decode(raw, params)))
        return processor.assemble(Parts(parts, grid=grid, source=Source(size=size)), params)

    water[2:4, 2:4] = False
    assert np.array_equal(result("classes").array[0], water)
    assert result("areas")["water"].pixels == 60
    assert [each["properties"]["pixels"] for each in result("polygons").features()].count(60) == 1


KINDS = {
    "image": "pictures",
    "structured": "data",
    "raster": "rasters",
    "series": "series of rasters",
    "tensor": "arrays",
    "areas": "areas",
    "zones": "areas by feature",
    "boxes": "boxes",
    "polygons": "polygons",
    "classes": "polygons",
    "audio": "sounds",
    "video": "videos",
}
"""Kind of output in code -> what the page of formats calls it."""


def test_the_page_of_formats_is_the_table():
    """A row for each format, in its order: name, title, suffixes, media type, what has it, and the extra it needs."""
    page = (DOCS / "formats.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = [[cell.strip("`| ") for cell in row] for row in rows]
    assert told == [
        [
            form.name,
            form.title,
            ", ".join(f"`{suffix}`" for suffix in form.suffixes).strip("`"),
            form.media_type,
            ", ".join(KINDS[kind] for kind in form.writers),
            *([form.extra] if form.extra else []),
        ]
        for form in FORMATS.values()
    ]
    for form in FORMATS.values():
        assert form.extra is None or f"\n{form.extra} =\n" in (DOCS.parent / "setup.cfg").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # in rioxarray
def test_the_snippets_of_the_page_of_formats_run(tmp_path, monkeypatch):
    """As they stand, with what they make."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    pytest.importorskip("rioxarray", reason="xarray's accessor of places")
    pytest.importorskip("geopandas")
    names = {}
    monkeypatch.chdir(tmp_path)
    for snippet in code_blocks((DOCS / "formats.md").read_text(encoding="utf-8"), "python"):
        exec(compile(snippet, "<docs/formats.md>", "exec"), names)  # noqa: S102 - the snippet is our own
    assert xarray.open_zarr("embeddings.zarr", decode_coords="all").raster.rio.crs.to_epsg() == 32632
    assert (tmp_path / "embeddings.zarr.zip").is_file()
    assert names["array"].rio.crs.to_epsg() == names["frame"].crs.to_epsg() == 32632
    assert len(names["frame"]) == 6
