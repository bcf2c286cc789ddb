"""Models of TerraTorch (``"architectures": ["Terratorch"]``): their folders, their inputs, and how they run."""
