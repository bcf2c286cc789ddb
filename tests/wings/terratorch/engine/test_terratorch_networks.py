"""TerratorchModel in this process, without an engine: checkpoints, encodings, data modules as TerraTorch has them."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from make_model import BANDS, MEANS, STDS, Recipe, config_of

from vllm_mmout.errors import InputError
from vllm_mmout.wings.terratorch.model import TerratorchModel

FIRES = "terratorch.datamodules.FireScarsNonGeoDataModule"
COORDINATES = {"temporal_coords": [[[2023.0, 257.0]]], "location_coords": [[47.3769, 8.5417]]}
"""What bfloat16 does not have."""


def made(config, *, seed=0):
    """A model with random weights."""
    torch.manual_seed(seed)
    return TerratorchModel(config)


def with_data(class_path, **arguments):
    """A flood model with another data module."""
    config = config_of(Recipe())
    config["pretrained_cfg"]["data"] = {"class_path": class_path, "init_args": arguments}
    return config


@pytest.fixture
def image():
    """Standardised pixels of one request."""
    return torch.randn((1, 6, 224, 224), generator=torch.Generator().manual_seed(3))


class TestCheckpoints:
    @staticmethod
    def task_of(config, **options):
        """TerraTorch's own task, whose weights are another's than those of `made`."""
        from terratorch.tasks import SemanticSegmentationTask

        torch.manual_seed(9)
        arguments = copy.deepcopy(config["pretrained_cfg"]["model"]["init_args"])
        return SemanticSegmentationTask(**arguments, **options).eval()

    @staticmethod
    def check_same(task, config, image):
        """A model that loaded the task's checkpoint gives what the task's own network gives."""
        model = made(config)
        model.load_from({"state_dict": task.state_dict(), "epoch": 1})
        with torch.inference_mode():
            assert torch.equal(model(pixel_values=image), task.model(image).output)

    def test_learned_positions(self, image):
        """DOFA's are weights like others: its own would be those of a network that nobody trained."""
        config = config_of(Recipe())
        network = config["pretrained_cfg"]["model"]["init_args"]["model_args"]
        del network["backbone_bands"]
        network |= {"backbone": "dofa_small_patch16_224", "backbone_model_bands": BANDS}
        network["backbone_out_indices"] = network["necks"].pop(0)["indices"]
        task = self.task_of(config)
        positions = [weight for name, weight in task.named_parameters() if name.endswith("pos_embed")]
        assert len(positions) == 1
        positions[0].data.add_(torch.randn(positions[0].shape))
        self.check_same(task, config, image)

    def test_weights_of_the_loss(self, image):
        """``class_weights`` are a buffer of the task, not of its network."""
        config = config_of(Recipe())
        task = self.task_of(config, class_weights=[0.2, 0.8])
        assert "criterion.weight" in task.state_dict()
        self.check_same(task, config, image)

    def test_heads_of_training(self, image):
        """``aux_heads`` help in training alone."""
        from terratorch.models.model import AuxiliaryHead

        config = config_of(Recipe())
        head = AuxiliaryHead("deep", "FCNDecoder", {"decoder_channels": 8, "decoder_in_index": -1})
        task = self.task_of(config, aux_heads=[head], aux_loss={"deep": 0.4})
        assert any(name.startswith("model.aux_heads.") for name in task.state_dict())
        self.check_same(task, config, image)


class TestEncodings:
    @pytest.fixture
    def config(self):
        """A model that takes both."""
        config = config_of(Recipe())
        config["pretrained_cfg"]["input"]["data"]["temporal_coords"] = {"type": "torch.Tensor", "shape": [1, 2]}
        return config

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_they_are_those_of_float32(self, config, image, dtype):
        """bfloat16 has no 2023 and no day 257; the sines and cosines are rounded, not what they are of."""
        from terratorch.models.backbones.prithvi_mae import LocationEncoder, TemporalEncoder

        model, exact = made(config).to(dtype), made(config)
        encoders = {
            name: module
            for name, module in model.network.named_modules()
            if isinstance(module, LocationEncoder | TemporalEncoder)
        }
        assert len(encoders) == 2
        seen = {}
        for name, module in encoders.items():
            module.register_forward_hook(lambda _, given, encoded, name=name: seen.update({name: (given, encoded)}))
        with torch.inference_mode():
            given = {name: torch.tensor(numbers) for name, numbers in COORDINATES.items()}
            assert model(pixel_values=image, **given).dtype == dtype
            for name, (coordinates, encoded) in seen.items():
                encoder = exact.network.get_submodule(name)
                encoder.scale.data.copy_(encoders[name].scale)
                assert encoded.dtype == dtype
                assert torch.equal(encoded, encoder(*coordinates).to(dtype))
        assert [coordinates[0].tolist() for coordinates, _ in seen.values()] == [
            torch.tensor(COORDINATES[name]).tolist() for name in ("temporal_coords", "location_coords")
        ]

    def test_neighbouring_days_are_told_apart(self, config, image):
        """In bfloat16 they were one."""
        model = made(config).to(torch.bfloat16)
        with torch.inference_mode():
            one, other = (
                model(pixel_values=image, temporal_coords=torch.tensor([[[2023.0, day]]])) for day in (256.0, 257.0)
            )
        assert not torch.equal(one, other)


class TestDataModules:
    def test_generic_ones_do_not_scale(self):
        """Which is what is thought of them where TerraTorch is not asked."""
        import terratorch.datamodules

        defaults = {
            name: inspect.signature(module).parameters["constant_scale"].default
            for name, module in vars(terratorch.datamodules).items()
            if name.startswith("Generic") and "constant_scale" in inspect.signature(module).parameters
        }
        assert "GenericNonGeoSegmentationDataModule" in defaults
        assert set(defaults.values()) <= {1, None}

    @pytest.mark.parametrize("arguments", [{}, {"constant_scale": 0.5}])
    def test_a_name_without_a_module(self, arguments):
        """TerraTorch's YAML says the class alone; its table and its default are found."""
        name = "Sen1Floods11NonGeoDataModule"
        both = [
            made(with_data(f"{place}{name}", data_root="unused", bands=BANDS, **arguments))
            for place in ("", "terratorch.datamodules.")
        ]
        (short,), (whole,) = (model._standards.values() for model in both)
        assert short.scale == whole.scale == arguments.get("constant_scale", 0.0001)
        assert torch.equal(short.mean, whole.mean)
        assert torch.equal(short.std, whole.std)

    def test_an_interval_of_bands(self):
        """The data module gets it as it stands."""
        from vllm_mmout.wings.terratorch.mapper import TerratorchMapper

        config = with_data(
            "GenericNonGeoSegmentationDataModule", batch_size=1, num_workers=0, num_classes=2, means=MEANS, stds=STDS,
            dataset_bands=[[0, 12]], output_bands=[[1, 6]],
        )  # fmt: skip
        assert TerratorchMapper.from_config(config).bands == ("1", "2", "3", "4", "5", "6")
        made(config)

    def test_integers_of_reflectance(self):
        """Statistics that the data module's own table has are looked at where the network runs."""
        model = made(with_data(FIRES, data_root="unused", bands=BANDS))
        pixels = torch.full((1, 6, 224, 224), 500, dtype=torch.int16)
        with pytest.raises(InputError, match=r"pixel_values holds integers, .* give scale=0\.0001"):
            model(pixel_values_raw=pixels)
        with torch.inference_mode():
            model(pixel_values_raw=pixels * 1e-4)
            model(pixel_values_raw=pixels, means=torch.full((1, 6), 500.0), stds=torch.full((1, 6), 300.0))
