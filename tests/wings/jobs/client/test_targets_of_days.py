"""Targets of a job that makes a map of each day: a folder, or one Zarr store."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.jobs.client.download import result_path
from vllm_mmout.wings.jobs.client.jobs import JobOutput
from vllm_mmout.wings.jobs.client.targets import DownloadTarget

DAYS = ["2024-05-01", "2024-06-03"]


def test_files_in_a_folder_are_named_by_day_as_by_run(tmp_path: Path) -> None:
    """The kind follows the day if there are several kinds. The server is asked for both."""
    folder = DownloadTarget.of(f"{tmp_path}/")
    maps = [JobOutput("classes", "tiff", 9, day=day) for day in DAYS]
    assert folder.files("scene", maps) == [tmp_path / f"{day}.tif" for day in DAYS]
    areas = [JobOutput("areas", "csv", 9, day=day) for day in DAYS]
    names = [f"{day}-classes.tif" for day in DAYS] + [f"{day}-areas.csv" for day in DAYS]
    assert [file.name for file in folder.files("scene", [*maps, *areas])] == names
    assert result_path("scene_x", maps[0]) == "/v1/scenes/scene_x/content?processor=classes&day=2024-05-01"


def test_a_file_of_one_map_is_refused(tmp_path: Path) -> None:
    """Before the upload by its suffix, and for a job that is resumed by the job's results."""
    file = DownloadTarget.of(f"{tmp_path}/map.tif")
    with pytest.raises(OptionError, match=r"name a folder, with a / at its end, or a Zarr store \(\.zarr\.zip\)"):
        file.check_days()
    with pytest.raises(OptionError, match=r"the job made a map of each day; name a folder"):
        file.files("scene", [JobOutput("classes", "tiff", 9, day=DAYS[0])])
    for name in ("", "days.zarr.zip"):
        DownloadTarget.of(f"{tmp_path}/{name}").check_days()
