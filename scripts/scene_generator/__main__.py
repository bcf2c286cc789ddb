"""Write the embedded scene and its truth into the package."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from scene_generator import make_scene, write_scene, write_truth
    from vllm_mmout.models.embedded.scene import SCENE, TRUTH

    scene = make_scene()
    write_scene(SCENE, scene)
    write_truth(TRUTH, scene)
