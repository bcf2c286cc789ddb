"""Map sounds, texts, videos and arrays to the input tensors of transformers models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError, RegistrationError, type_and_message
from vllm_mmout.models.inputs.input_forms import as_local_path, is_open_file
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.opened_raster import opened_picture
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.transformers.heads import Head
from vllm_mmout.wings.transformers.loading import image_processor_of, keywords_of_network
from vllm_mmout.wings.transformers.prompts import TEXTS, as_tensor

_MAX_SAMPLES: Final = 2**27
"""Maximum number of samples in a sound file, all channels together. At 48 kHz, this is 46 minutes of mono."""


@dataclass(frozen=True, slots=True)
class FeaturesMapper:
    """Mapper that converts one input to tensors by the model folder's feature extractor, tokenizer or processor.

    - A sound is a file, or ``{"audio": float [n], "sampling_rate": Hz}``. It is converted to the model's rate and to
      one channel. An array alone is assumed to have the model's rate.
    - A text is a ``str``, or ``{"text": ..., "text_pair": ...}``.
    - A video is a list of pictures, or uint8 [frames, height, width, 3]. If it has another number of frames than the
      model takes, frames are chosen evenly, as in the pipeline of transformers.
    - A text with choices is ``{"text": ..., "choices": [...]}``.
    - Tensors are a dict by keyword of ``forward``, without the batch axis, or an array for the first keyword.
    """

    model: str
    head: Head
    folder: str
    longest: int | None = None
    """Value of ``max_position_embeddings``, which limits the number of tokens in a text. None means no limit."""
    frames: int | None = None
    """Number of frames that the model takes from a video, or None if it takes any number."""
    least_samples: int = 1
    """Minimum number of samples in a sound, at the model's sampling rate."""

    @property
    def opens_files(self) -> bool:
        """Whether strings in an input are file paths. True for models that take sounds or videos."""
        return self.head.takes in ("audio", "video")

    @property
    def pictures(self) -> bool:
        """Whether input files are pictures. True for a video, which is a list of pictures, and False for a sound.

        The server checks the headers of pictures before they are read.
        """
        return self.head.takes == "video"

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Convert one input to the model's tensors. Raise InputError if it is malformed, empty or too long."""
        if data is None:
            raise InputError(f"the input is None; the model takes {self.head.takes}")
        for option in params.reads:
            raise OptionError(
                f"{option} says how a raster is read, but the model takes {self.head.takes}", param=option
            )
        mappers: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
            "audio": self._of_sound,
            "text": self._of_text,
            "video": self._of_video,
            "tensors": self._of_array,
        }
        choices = "choices" in self.head.needs
        features = self._of_choices(data) if choices else mappers[self.head.takes](data)
        keywords = keywords_of_network(self.model)
        tensors = {name: np.asarray(value) for name, value in features.items() if name in keywords}
        if choices:
            return MappedInput({**tensors, TEXTS: as_tensor(data["choices"])})
        return MappedInput(tensors if self.head.alone else {name: value[0] for name, value in tensors.items()})

    def _of_sound(self, data: Any) -> Mapping[str, Any]:
        extractor = _loaded(self.folder, "AutoFeatureExtractor")
        rate = int(extractor.sampling_rate)
        samples = _samples(data, rate)
        if len(samples) < self.least_samples:
            raise InputError(
                f"the sound has {len(samples)} samples at {rate} Hz, the model needs {self.least_samples}; give a"
                " longer one; an array of several channels is [channels, n]"
            )
        features: Mapping[str, Any] = extractor(samples, sampling_rate=rate, return_tensors="np")
        return features

    def _of_choices(self, data: Any) -> Mapping[str, Any]:
        """Tokenize the input's text as a pair with each of the input's choices. Return tensors [choices, tokens]."""
        choices = data.get("choices") if isinstance(data, Mapping) else None
        if not isinstance(choices, list | tuple) or not choices or set(data) != {"text", "choices"}:
            raise InputError(f'the model takes {{"text": ..., "choices": [...]}}, got {data!r:.200}')
        for choice in choices:
            self._of_text({"text": data["text"], "text_pair": choice})
        tokenizer = _loaded(self.folder, "AutoTokenizer")
        features: Mapping[str, Any] = tokenizer(
            [data["text"]] * len(choices), list(choices), padding=True, return_tensors="np"
        )
        return features

    def _of_text(self, data: Any) -> Mapping[str, Any]:
        texts = data if isinstance(data, Mapping) else {"text": data}
        if not set(texts) <= {"text", "text_pair"} or not all(isinstance(text, str) for text in texts.values()):
            raise InputError(f'the model takes a text, or {{"text": ..., "text_pair": ...}}, got {data!r:.200}')
        tokenizer = _loaded(self.folder, "AutoTokenizer")
        features: Mapping[str, Any] = tokenizer(**texts, return_tensors="np")
        tokens = np.asarray(features["input_ids"]).shape[1]
        if not tokens:
            raise InputError("the text is empty, and the model's tokenizer makes no token of it; give one with words")
        if self.longest is not None:  # some model families have more positions than tokens can use
            check_length(tokens, min(self.longest, tokenizer.model_max_length))
        return features

    def _of_video(self, data: Any) -> Mapping[str, Any]:
        if _is_file(data):
            raise InputError(
                "a video must be a list of pictures (within a list of inputs a list of its own), or uint8 [frames,"
                " height, width, 3]; decode the file"
            )
        frames = [_frame(frame) for frame in data]
        if not frames:
            raise InputError("the video has no frames; give one at least")
        if self.frames is not None and len(frames) != self.frames:
            chosen = np.linspace(0, len(frames) - 1, self.frames).astype(np.int64)
            frames = [frames[number] for number in chosen]
        features: Mapping[str, Any]
        of_videos = Path(self.folder, "video_preprocessor_config.json").is_file()
        if of_videos or "pixel_values_videos" in keywords_of_network(self.model):
            processor = _loaded(self.folder, "AutoVideoProcessor")
            features = processor(np.stack([np.asarray(frame) for frame in frames]), return_tensors="pt")
        else:
            features = image_processor_of(self.folder)(frames, return_tensors="pt")
        return features

    def _of_array(self, data: Any) -> Mapping[str, Any]:
        if isinstance(data, Mapping) and set(data) <= set(keywords_of_network(self.model)):  # tensors by keyword
            return {name: np.asarray(value)[np.newaxis] for name, value in data.items()}
        if not hasattr(data, "shape"):
            raise InputError(
                f"the model takes tensors by keyword ({', '.join(keywords_of_network(self.model))}), got"
                f" {type(data).__name__}"
            )
        return {keywords_of_network(self.model)[0]: np.asarray(data)[np.newaxis]}


def check_length(tokens: int, longest: int) -> None:
    """Raise InputError if the number of ``tokens`` of a text exceeds ``longest``, the model's maximum."""
    if tokens > longest:
        raise InputError(f"the text has {tokens} tokens, the model takes {longest}; shorten or split it")


def least_samples(config: Mapping[str, Any]) -> int:
    """Return the smallest number of samples from which the model's convolutions compute an output."""
    frames: int = 1 + sum(
        (kernel - 1) * dilation
        for kernel, dilation in zip(config.get("tdnn_kernel") or (), config.get("tdnn_dilation") or (), strict=False)
        if str(config["architectures"][0]).endswith("XVector")
    )
    for kernel, stride in zip(
        reversed(config.get("conv_kernel") or ()), reversed(config.get("conv_stride") or ()), strict=False
    ):
        frames = (frames - 1) * stride + kernel
    return frames


@cache
def _loaded(folder: str, auto: str) -> Any:
    """Load a folder's tokenizer, feature extractor or video processor. Code in the folder is not run.

    ``auto`` is the name of the class in transformers that loads it, such as "AutoTokenizer".
    """
    import transformers

    try:
        return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise RegistrationError(
            f"no {auto.removeprefix('Auto')} of transformers can be loaded from {folder}: {type_and_message(error)};"
            ' put there what its save_pretrained("FOLDER") writes'
        ) from error


def _samples(data: Any, rate: int) -> NDArray[np.float32]:
    """Convert a sound in any accepted form to mono samples at ``rate`` Hz, float32 [n]."""
    source_rate = rate
    if isinstance(data, Mapping):
        keys = {"audio"} if _is_file(data.get("audio")) else {"audio", "sampling_rate"}
        if not keys <= set(data) <= {"audio", "sampling_rate"}:
            raise InputError(f'a sound is {{"audio": array, "sampling_rate": Hz}}, got the keys {list(data)}')
        data, source_rate = data["audio"], _rate(data.get("sampling_rate", rate))
    if _is_file(data):
        samples, source_rate = _decoded(data)
    else:
        samples = np.asarray(data)
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2) or not samples.size:
        raise InputError(
            f"a sound must be floating point [n] or [channels, n], full scale from -1 to 1, got {samples.dtype}"
            f" {list(samples.shape)}"
        )
    if samples.ndim == 2 and samples.shape[0] > samples.shape[1]:
        raise InputError(
            f"the sound is an array of {samples.shape[0]} channels with {samples.shape[1]} samples each: arrays are"
            " [channels, n]; turn one of [n, channels], as soundfile reads it, by array.T"
        )
    if not np.isfinite(samples).all():
        raise InputError("the sound holds NaN or infinity; give finite samples")
    mono = samples if samples.ndim == 1 else samples.mean(axis=0)
    return mono.astype(np.float32) if source_rate == rate else _resampled(mono, source_rate, rate)


def _rate(rate: Any) -> int:
    number = rate.item() if isinstance(rate, np.generic) else rate
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole or number < 1:
        raise InputError(f"sampling_rate must be a whole number of Hz above 0, got {rate!r}")
    return int(number)


def _decoded(data: Any) -> tuple[NDArray[np.float32], int]:
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise InputError(
            'sounds are decoded by soundfile: pip install "vllm-mmout[audio]", or give {"audio": array,'
            ' "sampling_rate": Hz}'
        ) from error
    source: Any = BytesIO(data) if isinstance(data, bytes | bytearray) else data
    if isinstance(source, str | Path):
        path = as_local_path(source)
        if not path.is_file():
            raise InputError(f"there is no such file: {str(source)!r}; give a WAV, FLAC, Ogg or MP3")
        source = str(path)
    try:
        with soundfile.SoundFile(source) as file:
            if file.frames * file.channels > _MAX_SAMPLES:
                raise InputError(f"the sound has {file.frames} samples of {file.channels} channels; cut it into parts")
            samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "error_string", str(error)).rstrip(".")
        raise InputError(f"the sound cannot be decoded: {reason}; give a WAV, FLAC, Ogg or MP3") from error
    return samples.T, rate


def _resampled(samples: NDArray[np.float32], given: int, rate: int) -> NDArray[np.float32]:
    try:
        import soxr
    except ModuleNotFoundError as error:
        raise InputError(
            f"the sound has {given} Hz, the model takes {rate}, and resampling needs soxr: pip install"
            ' "vllm-mmout[audio]", or give the sound at that rate'
        ) from error
    resampled: NDArray[np.float32] = soxr.resample(samples.astype(np.float32), given, rate)
    if not resampled.size:
        raise InputError(f"the sound of {len(samples)} samples at {given} Hz is too short; give a longer one")
    return resampled


def _is_file(data: Any) -> bool:
    return isinstance(data, str | os.PathLike | bytes | bytearray) or is_open_file(data)


def _frame(frame: Any) -> Any:
    from PIL import Image, ImageOps

    if hasattr(frame, "getbands"):
        return ImageOps.exif_transpose(frame).convert("RGB")
    if _is_file(frame):
        with opened_picture(frame) as file:
            bands = file.read().array[:3]
        frame = np.moveaxis(np.repeat(bands[:1], 3, axis=0) if len(bands) < len("rgb") else bands, 0, -1)
    array = np.ascontiguousarray(frame)
    if array.dtype != np.uint8 or array.ndim != len("hwc") or array.shape[2] != len("rgb") or not array.size:
        raise InputError(f"a frame must be a picture, or uint8 [height, width, 3], got {array.dtype} {array.shape}")
    return Image.fromarray(array)
