"""What docs/inputs.md shows works at the top of a script, and needs the line that it says."""

from __future__ import annotations

import re
from pathlib import Path

import forked_python
import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "inputs.md").read_text(encoding="utf-8")
FIRST, EXAMPLE, _ = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
LOADING = "load_general_plugins()  # before the imports below\n"
ASKED = """
from vllm_mmout import MULTIMODAL_INPUT_REGISTRY

found = MULTIMODAL_INPUT_REGISTRY.registered(Doubling)
print(found.decorators, found.mapper.function is as_tensors, found.dummy_data is largest)
"""


def run(script):
    """Run a script in a process that has imported vLLM, and has not loaded its plugins."""
    return forked_python.run(["-c", script], cwd=ROOT)


def test_the_example_works_at_the_top_of_a_script():
    """The page's first lines import the old names, and its example registers with our registry."""
    done = run(FIRST + EXAMPLE + ASKED)
    assert done.stdout.strip().endswith("['register_input_mapper', 'register_dummy_data'] True True"), done.stderr


@pytest.mark.slow
def test_without_its_first_line_it_does_not():
    """The guide says so; where vLLM has the names at once, the line is needless and the guide is wrong."""
    assert LOADING in FIRST
    done = run(FIRST.replace(LOADING, ""))
    assert "ImportError: cannot import name 'INPUT_REGISTRY' from 'vllm.inputs'" in done.stderr


def test_every_name_of_the_table_is_there():
    """Each decorator is one of the input registry."""
    from vllm_mmout import MULTIMODAL_INPUT_REGISTRY

    names = set(re.findall(r"`(register_\w+)\(", GUIDE))
    assert len(names) == 6
    assert [name for name in names if not callable(getattr(type(MULTIMODAL_INPUT_REGISTRY), name, None))] == []
