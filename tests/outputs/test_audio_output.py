"""AudioOutput: sounds in every format, with soundfile and the standard library's wave as oracles."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs import AudioOutput, ImageOutput, MediaOutput

soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")

RATE = 24000
FRAME_S = 0.02
"""Seconds of an Opus packet; a frame of MP3 is longer, and its end is told exactly."""
LEVELS = np.random.default_rng(1).integers(-32768, 32768, (2, 5000), "int16")
STEREO = LEVELS.astype("float32") / 32768
LOSSLESS = [("wav", "PCM_16", 16), ("flac", "PCM_16", 16), ("wav", "PCM_24", 24), ("flac", "PCM_24", 24)]
SOUNDS = hnp.arrays(
    "float32", st.tuples(st.integers(1, 4), st.integers(1, 50)), elements=st.floats(-1.5, 1.5, width=32)
)


def sweep(rate: int, channels: int, seconds: float = 1.0) -> np.ndarray:
    """Tones from 100 to 1000 Hz, half of full scale, each channel more silent than the one before."""
    time = np.arange(round(rate * seconds)) / rate
    wave_ = 0.5 * np.sin(2 * np.pi * (100 * time + 450 * time**2))
    return np.stack([wave_ * 0.7**channel for channel in range(channels)]).astype("float32")


def voice(rate: int) -> np.ndarray:
    """A second of a vowel of 140 Hz, whose pitch and loudness waver."""
    time = np.arange(rate) / rate
    phase = np.cumsum(140 + 7 * np.sin(2 * np.pi * 5 * time)) / rate
    tones = sum(np.cos(2 * np.pi * k * phase + k) / k for k in range(1, 25))
    return (0.25 * tones * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))).astype("float32")[np.newaxis]


def read(data: bytes, dtype: str = "float32") -> tuple[np.ndarray, int]:
    """Samples [channels, n] and rate, as soundfile reads them."""
    samples, rate = soundfile.read(BytesIO(data), always_2d=True, dtype=dtype)
    return samples.T, rate


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_sixteen_bits_come_back_as_they_were(name: str) -> None:
    """Samples that were made of 16 bits are the same 16 bits in a file."""
    data = AudioOutput(STEREO, RATE).to_bytes(name)
    samples, rate = read(data, "int16")
    assert (soundfile.info(BytesIO(data)).subtype, rate) == ("PCM_16", RATE)
    np.testing.assert_array_equal(samples, LEVELS, strict=True)


@settings(max_examples=40)
@given(SOUNDS, st.sampled_from(LOSSLESS))
def test_the_nearest_level_is_written(samples: np.ndarray, asked: tuple[str, str, int]) -> None:
    """Each sample is within half a step, but at 1, which has no level; outside it is clipped."""
    name, subtype, bits = asked
    written, _ = read(AudioOutput(samples, RATE).to_bytes(name, subtype=subtype), "float64")
    full = 2 ** (bits - 1)
    expected = samples.astype("float64").clip(-1, (full - 1) / full)
    np.testing.assert_allclose(written, expected, rtol=0, atol=0.5 / full)


@pytest.mark.parametrize(("name", "subtype", "bits"), LOSSLESS)
def test_the_subtype_is_that_of_the_file(name: str, subtype: str, bits: int) -> None:
    """24 bits hold what 16 do not."""
    fine = np.arange(-300, 300, dtype="float32")[np.newaxis] / 2**23
    data = AudioOutput(fine, RATE).to_bytes(name, subtype=subtype)
    assert soundfile.info(BytesIO(data)).subtype == subtype
    assert np.array_equal(read(data)[0], fine) == (bits == 24)


def test_float_is_not_clipped() -> None:
    """WAV of floating-point numbers holds every sample to the last bit, also outside [-1, 1]."""
    samples = np.array([[0.1, -3.5, 1e-30, 2.0**100]], "float32")
    written, rate = read(AudioOutput(samples, 44100).to_bytes("wav", subtype="FLOAT"))
    assert rate == 44100
    np.testing.assert_array_equal(written, samples, strict=True)


@pytest.mark.parametrize("name", ["mp3", "opus", "ogg"])
def test_lossy_formats_clip_too(name: str) -> None:
    """What is louder than full scale sounds as if it had been cut there."""
    loud = sweep(RATE, 1) * 4
    heard, _ = read(AudioOutput(loud, RATE).to_bytes(name))
    np.testing.assert_array_equal(heard, read(AudioOutput(loud.clip(-1, 1), RATE).to_bytes(name))[0])


@settings(max_examples=30)
@given(SOUNDS)
def test_pcm_is_the_body_of_the_wav(samples: np.ndarray) -> None:
    """Raw samples are those of the WAV, 16 bits little endian and interleaved; wave reads the rest of its header."""
    output = AudioOutput(samples, RATE)
    with wave.open(BytesIO(output.to_bytes("wav"))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (len(samples), 2, RATE)
        body = file.readframes(file.getnframes())
    assert output.to_bytes("pcm") == body
    written = np.frombuffer(body, "<i2").reshape(-1, len(samples)).T
    expected = np.rint(samples.astype("float64") * 32768).clip(-32768, 32767)
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        *(("mp3", rate) for rate in (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
        *(("opus", rate) for rate in (8000, 12000, 16000, 24000, 48000)),
        *(("ogg", rate) for rate in (8000, 24000, 44100, 192000)),
    ],
)
def test_lossy_formats_sound_alike(name: str, rate: int, channels: int) -> None:
    """A sweep keeps its rate, its channels in their order and loudness, its length, and its shape."""
    samples = sweep(rate, channels)
    data = AudioOutput(samples, rate).to_bytes(name)
    assert len(data) < samples.size * 2
    heard, heard_rate = read(data)
    assert (heard_rate, len(heard)) == (rate, channels)
    assert 0 <= heard.shape[1] - samples.shape[1] <= (FRAME_S * rate if name == "opus" else 0)
    for one, other in zip(samples, heard[:, : samples.shape[1]], strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.99
        assert other.std() == pytest.approx(one.std(), rel=0.05)


@pytest.mark.parametrize("name", ["opus", "ogg", "mp3", "flac", "wav"])
@pytest.mark.parametrize("count", [1, 2, 479, 480, 481])
def test_the_shortest_sounds_are_files_too(name: str, count: int) -> None:
    """One sample is a sound."""
    heard, _ = read(AudioOutput(np.full(count, 0.25, "float32"), RATE).to_bytes(name))
    assert 0 <= heard.shape[1] - count <= (FRAME_S * RATE if name == "opus" else 0)


@pytest.mark.parametrize("rate", [8000, 12000])
@pytest.mark.parametrize("part", range(20))
def test_opus_ends_without_a_click(rate: int, part: int) -> None:
    """Wherever the sound ends within a packet, what is heard at its end is the sound."""
    packet = rate // 50
    samples = voice(rate)[:, : 25 * packet + packet * part // 20]
    heard, _ = read(AudioOutput(samples, rate).to_bytes("opus"))
    wrong = np.abs(heard[:, : samples.shape[1]] - samples)
    assert wrong[:, -packet:].max() < 0.1


def test_long_sounds_need_no_long_stack() -> None:
    """Ten seconds are written as Vorbis in a thread with a stack of 256 KiB: libvorbis puts on it what it is given."""
    code = (
        "import threading, numpy as np\n"
        "from vllm_mmout import AudioOutput\n"
        "threading.stack_size(1 << 18)\n"
        "samples = np.random.default_rng(1).uniform(-0.1, 0.1, 240000).astype('float32')\n"
        "thread = threading.Thread(target=lambda: print(AudioOutput(samples, 24000).to_bytes('ogg')[:4]))\n"
        "thread.start(); thread.join()"
    )
    assert fresh(code) == "b'OggS'"


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".wav", ("WAV", "PCM_16")),
        (".FLAC", ("FLAC", "PCM_16")),
        (".mp3", ("MP3", "MPEG_LAYER_III")),
        (".opus", ("OGG", "OPUS")),
        (".ogg", ("OGG", "VORBIS")),
    ],
)
def test_the_suffix_tells_the_format(tmp_path: Path, suffix: str, kind: tuple[str, str]) -> None:
    """The path comes back, and the file has the format that its suffix names, in either case."""
    target = tmp_path / f"sound{suffix}"
    assert AudioOutput(sweep(RATE, 1), RATE).save(str(target)) == target
    info = soundfile.info(target)
    assert (info.format, info.subtype, info.samplerate, info.channels) == (*kind, RATE, 1)


def test_raw_samples_are_saved_by_their_suffix(tmp_path: Path) -> None:
    """A file .pcm holds nothing but samples."""
    path = AudioOutput(STEREO, RATE).save(tmp_path / "a.pcm")
    np.testing.assert_array_equal(np.fromfile(path, "<i2").reshape(-1, 2).T, LEVELS)


def test_it_plays_itself_in_notebooks() -> None:
    """The player holds the same WAV, which is also what comes without a format."""
    output = AudioOutput(STEREO, RATE)
    found = re.fullmatch(r'<audio controls src="data:audio/wav;base64,([\w+/=]+)"></audio>', output._repr_html_())
    assert found is not None
    data = base64.b64decode(found[1], validate=True)
    assert data == output.to_bytes("wav") == output.to_bytes()
    np.testing.assert_array_equal(read(data, "int16")[0], LEVELS)


def test_it_says_what_it_is() -> None:
    """Samples, rate, channels, seconds and the repr are those of what was given; a sound of one row is one channel."""
    stereo, mono = AudioOutput(STEREO, np.int64(10000)), AudioOutput(STEREO[1], 10000)
    assert stereo.samples is STEREO
    assert (stereo.rate, type(stereo.rate), stereo.channels, stereo.duration, stereo.path) == (10000, int, 2, 0.5, None)
    np.testing.assert_array_equal(mono.samples, STEREO[1:], strict=True)
    assert (mono.channels, mono.duration) == (1, 0.5)
    assert repr(stereo) == "AudioOutput(0.5 s, 10000 Hz, 2 channels)"
    mono.path = "out/a.wav"
    assert repr(mono) == "AudioOutput(0.5 s, 10000 Hz, 1 channel, path='out/a.wav')"


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_are_sounds(dtype: str) -> None:
    """Tensors that need gradients, and those of bfloat16, are taken as pictures take them."""
    import torch

    tensor = torch.linspace(-1, 1, 100, dtype=getattr(torch, dtype)).requires_grad_()
    np.testing.assert_array_equal(AudioOutput(tensor, RATE).samples[0], tensor.detach().float().numpy(), strict=True)


def test_views_are_sounds_too() -> None:
    """A sound that is turned around is written as it looks."""
    written, _ = read(AudioOutput(STEREO[::-1, ::-2], RATE).to_bytes("flac"), "int16")
    np.testing.assert_array_equal(written, LEVELS[::-1, ::-2])


@pytest.mark.parametrize("output", [AudioOutput(STEREO, RATE), ImageOutput(np.zeros((2, 2), "uint8"))])
def test_media_tell_what_they_were_decoded_from(output: MediaOutput) -> None:
    """An output is whole and of no tokens until it is told otherwise, and says so of itself alone."""
    assert (output.partial, output.span) == (False, None)
    output.partial, output.span = True, (3, 10)
    assert (MediaOutput.partial, MediaOutput.span) == (False, None)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((1, 4)), r'float32 \[channels, n\].*; got float64 \[1, 4\]; convert it with \.astype\("float32"\)'),
        (np.zeros(4, "float16"), r"got float16 \[4\]; convert it"),
        (np.zeros(4, "int16"), r"got int16 \[4\]; divide it by 32768 as float32"),
        (np.zeros(4, "complex64"), r"got complex64 \[4\]$"),
        (np.zeros((1, 2, 4), "float32"), r"got float32 \[1, 2, 4\]$"),
        (np.float32(0), r"got float32 \[\]$"),
        (np.zeros((1, 0), "float32"), r"not empty; got float32 \[1, 0\]$"),
        (np.zeros((0, 5), "float32"), r"not empty; got float32 \[0, 5\]$"),
        (np.zeros((5000, 2), "float32"), r"up to 1024 channels; got \[5000, 2\]; transpose it"),
        (
            np.array([[0, 1, 2], [0, np.nan, -np.inf]], "float32"),
            "2 of 6 samples are NaN or infinite, .* 1 of channel 1",
        ),
    ],
)
def test_what_is_no_sound_is_refused(samples: np.ndarray, words: str) -> None:
    """The error names dtype and shape that came, those that are taken, and what to do."""
    with pytest.raises(InputError, match=words):
        AudioOutput(samples, RATE)


@pytest.mark.parametrize("rate", [0, -1, 24000.0, True, "24000", None])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    """A rate is a whole number above 0."""
    with pytest.raises(InputError, match=rf"rate must be a whole number of Hz above 0, got {rate!r}"):
        AudioOutput(STEREO, rate)


@pytest.mark.parametrize(
    ("channels", "rate", "name", "options", "words"),
    [
        (
            1,
            44100,
            "opus",
            {},
            r"opus takes rates of 8000, .*, 48000 Hz, got 44100; save it as \.wav, or resample",
        ),
        (1, 96000, "mp3", {}, r"mp3 takes rates of 8000, 11025, .* Hz, got 96000; save it as \.wav, or resample it"),
        (1, 200001, "ogg", {}, "ogg takes rates of 8000 to 192000 Hz, got 200001"),
        (1, 700000, "flac", {}, "flac takes rates of 1 to 655350 Hz, got 700000"),
        (1, 65537, "flac", {}, r"writes no flac of 1 x 5 samples at 65537 Hz \(.*initialization.*\); save it as \.wav"),
        (3, 48000, "opus", {}, r"opus takes up to 2 channels, got 3; save it as \.wav"),
        (3, 48000, "mp3", {}, "mp3 takes up to 2 channels, got 3"),
        (3, 48000, "ogg", {}, "ogg takes up to 2 channels, got 3"),
        (9, 48000, "flac", {}, "flac takes up to 8 channels, got 9"),
        (1, 48000, "flac", {"subtype": "FLOAT"}, r"flac has no subtype 'FLOAT' \(known: PCM_16, PCM_24\)"),
        (1, 48000, "wav", {"subtype": "PCM_8"}, r"no subtype 'PCM_8' \(known: PCM_16, PCM_24, FLOAT\)"),
        (1, 48000, "mp3", {"subtype": "PCM_16"}, "mp3 has no subtype; leave it out, or save as FLAC or WAV"),
        (1, 48000, "pcm", {"subtype": "PCM_24"}, "pcm has no subtype"),
        (1, 48000, "wav", {"quality": 3}, r"unknown option quality for wav \(known: subtype"),
        (1, 48000, "aac", {}, r"cannot be written as 'aac' \(known: wav, mp3, opus, ogg, flac, pcm\)"),
    ],
)
def test_what_a_format_cannot_do_is_refused(
    channels: int, rate: int, name: str, options: dict[str, object], words: str
) -> None:
    """The error says what the format cannot hold, and what to do instead."""
    with pytest.raises(SaveError, match=words):
        AudioOutput(np.zeros((channels, 5), "float32"), rate).to_bytes(name, **options)


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus", "ogg"])
def test_without_soundfile_the_error_names_the_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written; raw samples need no other package."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    output = AudioOutput(STEREO, RATE)
    with pytest.raises(SaveError, match=rf'saving {name} needs soundfile; pip install "vllm-mmout\[audio\]"'):
        output.save(tmp_path / f"a.{name}")
    assert list(tmp_path.iterdir()) == []
    assert output.to_bytes("pcm") == LEVELS.T.astype("<i2").tobytes()


def test_a_soundfile_without_its_library_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing soundfile again would not help where it finds no libsndfile."""
    (tmp_path / "soundfile.py").write_text("raise OSError('sndfile library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "soundfile")
    with pytest.raises(SaveError, match=r"saving wav needs libsndfile, .* \(sndfile library not found\); install it"):
        AudioOutput(STEREO, RATE).to_bytes()


def test_a_library_without_a_format_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of libsndfile differ in what they hold."""
    monkeypatch.delitem(soundfile._formats, "MP3")
    with pytest.raises(SaveError, match=r"libsndfile writes no mp3 .* install a newer soundfile"):
        AudioOutput(STEREO, RATE).to_bytes("mp3")


def test_importing_loads_neither_torch_nor_soundfile() -> None:
    """The module, and a sound, need NumPy alone; soundfile comes with the first file."""
    code = (
        "import sys\n"
        "from vllm_mmout.outputs.audio import AudioOutput\n"
        "import numpy as np\n"
        "output = AudioOutput(np.zeros(5, 'float32'), 24000)\n"
        "output.to_bytes('pcm')\n"
        "heavy = ('torch', 'vllm', 'soundfile', 'scipy')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "output.to_bytes('wav')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert fresh(code).splitlines() == ["[]", "['soundfile']"]
