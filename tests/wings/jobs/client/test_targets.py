"""Targets: what the file that ``-o`` names asks a server for, and what may lie in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.formats import SENT, format_named
from vllm_mmout.wings.jobs.client.jobs import JobOutput
from vllm_mmout.wings.jobs.client.targets import DownloadTarget

FILES = [suffix for form in SENT.values() for suffix in form.suffixes if suffix not in form.folders]


@pytest.mark.parametrize("suffix", FILES)
def test_a_suffix_asks_for_its_format(suffix: str, tmp_path: Path) -> None:
    """Each of the table, in any case; a folder asks for none, and names the file by its result."""
    name = format_named(suffix).name
    file, folder = (DownloadTarget.of(f"{tmp_path}/{end}") for end in (f"x{suffix.upper()}", ""))
    assert file.output_format(None) == file.output_format(suffix[1:]) == name
    assert (folder.output_format(None), folder.output_format(name)) == (None, name)
    made = [JobOutput("segmentation", name, 9)]
    assert file.files("scene", made) == [tmp_path / f"x{suffix.upper()}"]
    assert folder.files("scene", made) == [tmp_path / f"scene{SENT[name].suffixes[0]}"]


def test_json_of_polygons_is_geojson(tmp_path: Path) -> None:
    """A server makes it where JSON is asked for; JSON of other results is none."""
    polygons, areas = JobOutput("segmentation", "geojson", 9), JobOutput("segmentation", "json", 9)
    assert DownloadTarget.of(f"{tmp_path}/x.json").files("scene", [polygons]) == [tmp_path / "x.json"]
    with pytest.raises(OptionError, match=r"the result is json, but -o .* means geojson; .* ends in \.json"):
        DownloadTarget.of(f"{tmp_path}/x.geojson").files("scene", [areas])


def test_kinds_of_another_format_keep_their_suffix(tmp_path: Path) -> None:
    """If one of several results has the format of ``-o``, the others are named as `run` names them."""
    kinds = {"classes": "tiff", "polygons": "geopackage", "areas": "json"}
    outputs = [JobOutput(kind, form, 9) for kind, form in kinds.items()]
    files = DownloadTarget.of(f"{tmp_path}/map.gpkg").files("scene", outputs)
    assert [file.name for file in files] == ["map-classes.tif", "map-polygons.gpkg", "map-areas.json"]
    with pytest.raises(OptionError, match=r"the result is tiff and geopackage and json, but -o .* means png"):
        DownloadTarget.of(f"{tmp_path}/map.png").files("scene", outputs)


def test_what_no_server_makes_is_refused(tmp_path: Path) -> None:
    """Sounds too; the suffixes that there are stand in the error. A result of no known format is named .bin."""
    for name in ("x.wav", "x.shp"):
        with pytest.raises(
            OptionError,
            match=r"servers do not write \.\w+ files \(known: \.png, .*, \.pmtiles, \.nc, \.zarr\.zip, \.mp4, \.gif\)",
        ):
            DownloadTarget.of(f"{tmp_path}/{name}").output_format(None)
    with pytest.raises(OptionError, match=r"as one zip file; name it .*/x\.zarr\.zip"):
        DownloadTarget.of(f"{tmp_path}/x.zarr").output_format(None)
    assert DownloadTarget.of(f"{tmp_path}/").files("scene", [JobOutput("x", "bin", 9)]) == [tmp_path / "scene.bin"]
