"""What was assumed about an input reaches the result, the file, and whoever called."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scenes_for_tests import TILE, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.commands.run_report import report
from vllm_mmout.errors import AssumedWarning
from vllm_mmout.models.inputs.raster_view import RasterView

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
SENTENCES = ("The file states a scale of 0.1, which was not applied.", "Bands were taken by their place.")


@pytest.fixture(autouse=True)
def assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every raster be one of which two things were assumed."""
    monkeypatch.setattr(RasterView, "assumed", SENTENCES)


@pytest.mark.parametrize("tile", [None, TILE], ids=["whole", "tiles"])
@pytest.mark.parametrize("output", ["classes", "areas"])
def test_results_and_files_say_what_was_assumed_and_a_call_warns_once(llm, tmp_path, tile, output):
    """Each sentence is one warning of a call, whatever the number of inputs and tiles."""
    source = write(tmp_path / "in.tif", pixels()[:, : 2 * TILE, : 2 * TILE] if tile else pixels()[:, :TILE, :TILE])
    params = [OutputParams(tile=tile, output=output, path=str(tmp_path / name) + "/") for name in "ab"]
    with pytest.warns(AssumedWarning) as caught:
        results = llm.generate([str(source), str(source)], params, use_tqdm=False)
    assert [str(one.message) for one in caught] == list(SENTENCES)
    assert {one.filename for one in caught} == {__file__}
    for result in results:
        assert result.assumed == result.outputs.assumed == SENTENCES
        if output == "classes":
            with rasterio.open(result.outputs.path) as saved:
                assert saved.tags()["MMOUT_ASSUMED"].splitlines() == list(SENTENCES)


def test_a_model_on_a_result_does_not_repeat_what_was_assumed_before(llm, tmp_path, monkeypatch):
    """The item of the first model's input is not one of the second one's."""
    monkeypatch.setattr(RasterView, "assumed", ())
    array = pixels()[:, :TILE, :TILE]
    source = write(tmp_path / "in.tif", array)
    with rasterio.open(source, "r+") as dataset:
        dataset.update_tags(MMOUT_ASSUMED="Something else.", SENSOR="MSI")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = llm.generate([str(source)], use_tqdm=False)[0].outputs
    assert output.metadata["SENSOR"] == "MSI"
    assert "MMOUT_ASSUMED" not in output.metadata


def test_the_command_line_prints_what_was_assumed_beside_the_file(llm, tmp_path, capsys):
    """Warnings go to standard error, the names of files alone to standard output."""
    with pytest.warns(AssumedWarning):
        result = llm.generate([np.asarray(pixels()[:, :TILE, :TILE])], OutputParams(path=str(tmp_path) + "/"))[0]
    assert report("in.tif", result)
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("warning")] == [
        f"warning: in.tif: {sentence}" for sentence in SENTENCES
    ]
    assert said.out.splitlines() == [result.outputs.path]
