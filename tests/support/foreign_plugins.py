"""A package of somebody else with plugins of vLLM, as pip would have installed it."""

from __future__ import annotations

from pathlib import Path

CODE = '''
import os
from pathlib import Path


def general():
    """Leave a file that bears the name of the process."""
    Path(os.environ["FOREIGN_LOADED"], str(os.getpid())).touch()


class Endpoint:
    required_tasks = None

    def attach_router(self, app):
        app.add_api_route(f"/foreign/{self.name}", lambda: "here")

    async def init_state(self, engine_client, state, args):
        pass


class Other(Endpoint):
    name = "other"


class Third(Endpoint):
    name = "third"
'''
ENTRY_POINTS = """
[vllm.general_plugins]
other = foreign_plugins_code:general

[vllm.endpoint_plugins]
other = foreign_plugins_code:Other
third = foreign_plugins_code:Third
"""
ROUTES = {"other": "/foreign/other", "third": "/foreign/third"}


def install(folder: Path) -> Path:
    """Put it into a folder for ``PYTHONPATH``: general plugin ``other``, endpoint plugins ``other`` and ``third``."""
    info = folder / "foreign_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "foreign_plugins_code.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder
