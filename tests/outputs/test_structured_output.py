"""StructuredOutput: typed fields that become JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_mmout.errors import SaveError

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import StructuredOutput


class Count(StructuredOutput):
    ships: int
    areas: tuple[float, ...] = ()


def test_fields_are_checked_and_written_as_json(tmp_path: Path) -> None:
    """The file holds the fields; the path is no field."""
    output = Count(ships=3, areas=(1.5,))
    output.path = "somewhere"
    assert json.loads(output.save(tmp_path / "count.json").read_text()) == {"ships": 3, "areas": [1.5]}
    assert Count.model_validate_json(output.to_bytes()).ships == 3
    assert output.path == "somewhere"
    assert Count(ships=1).path is None
    assert "path" not in Count.model_json_schema()["properties"]
    with pytest.raises(ValueError, match="valid integer"):
        Count(ships="many")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    """Suffix and format must be JSON; nothing is written else."""
    with pytest.raises(SaveError, match=r"suffix '\.txt' tells the format \(known: \.json\)"):
        Count(ships=1).save(tmp_path / "a.txt")
    with pytest.raises(SaveError, match=r"Count cannot be written as 'xml' \(known: json\)"):
        Count(ships=1).to_bytes("xml")
    assert list(tmp_path.iterdir()) == []


def test_without_pydantic_the_error_names_it() -> None:
    """Only StructuredOutput asks for pydantic, and says where it comes from."""
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from vllm_mmout.outputs import ImageOutput, RasterOutput, TensorOutput\n"
        "try: from vllm_mmout.outputs import StructuredOutput\n"
        "except ModuleNotFoundError as error: print(error, error.name)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("StructuredOutput needs pydantic, which comes with the engine; pip install")
    assert result.stdout.strip().endswith("pydantic")
