"""The generator of the embedded scene: ``python scripts/scene_generator`` writes the files that the package ships."""

from scene_generator.generate import NODATA, Scene, make_scene, write_scene, write_truth

__all__ = ["NODATA", "Scene", "make_scene", "write_scene", "write_truth"]
