"""What files and products say of their numbers reaches a model as the request, or else the format, has it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_mmout import OutputParams, RasterMapper
from vllm_mmout.errors import InputError, OptionError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
SIZE = (20, 30)
GRID = {"crs": "EPSG:32632", "transform": (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0)}
PRODUCT = "LC09_L2SP_195027_20240817_20240818_02_T1"
SAFE = "S2A_MSIL2A_20240817T101559_N0511_R065_T32TMT_20240817T160000.SAFE"


def numbers(seed=0, dtype=np.int16, low=1, high=9000):
    """Numbers of one band, with a hole of 0 in its first four rows."""
    found = np.random.default_rng(seed).integers(low, high, SIZE).astype(dtype)
    found[:4] = 0
    return found


def write(path, *bands, driver="GTiff", scales=None, offsets=None, tags=None, **profile):
    """Write bands with rasterio."""
    path.parent.mkdir(parents=True, exist_ok=True)
    transform = rasterio.Affine(*GRID["transform"])
    shape = {"count": len(bands), "height": SIZE[0], "width": SIZE[1], "dtype": bands[0].dtype}
    with rasterio.open(path, "w", driver=driver, crs=GRID["crs"], transform=transform, **shape, **profile) as file:
        file.write(np.stack(bands))
        if scales:
            file.scales, file.offsets = scales, offsets
        file.update_tags(**tags or {})
    return str(path)


def seen(data, bands=1, **options):
    """What a model of so many bands sees, where it is valid, and what was assumed."""
    names = bands if isinstance(bands, tuple) else tuple("abcdef"[:bands])
    mapper = RasterMapper("model", names, 512)
    with mapper.open(data, OutputParams(**options)) as view:
        mapped = mapper.whole(view)
        return mapped.tensors["pixel_values"], mapped.source.valid, view.assumed


@pytest.mark.parametrize("sidecar", [False, True], ids=["tags", "aux.xml"])
def test_tags_are_taken_or_refused_by_the_request_and_else_said(tmp_path, sidecar):
    """GDAL's scale and offset of each band, in the file or beside it, as rasterio reads them."""
    bands, scales, offsets = [numbers(0), numbers(1)], (0.1, 0.01), (5.0, 0.0)
    path = write(tmp_path / "in.tif", *bands, **({} if sidecar else {"scales": scales, "offsets": offsets}))
    if sidecar:
        items = (
            f"<Scale>{scale}</Scale><Offset>{offset}</Offset>" for scale, offset in zip(scales, offsets, strict=True)
        )
        rows = "".join(f'<PAMRasterBand band="{band}">{row}</PAMRasterBand>' for band, row in enumerate(items, 1))
        (tmp_path / "in.tif.aux.xml").write_text(f"<PAMDataset>{rows}</PAMDataset>")
    with rasterio.open(path) as file:
        stored = file.read()
        values = stored * np.reshape(file.scales, (2, 1, 1)) + np.reshape(file.offsets, (2, 1, 1))
    array, _, assumed = seen(path, 2)
    np.testing.assert_array_equal(array, stored, strict=True)
    assert [sentence.partition(" are stated")[0] for sentence in assumed] == [
        "in.tif: scale 0.1 and offset 5",
        "in.tif: scale 0.01 and offset 0",
    ]
    array, _, assumed = seen(path, 2, scale="file")
    assert (array.dtype, assumed) == (np.float32, ())
    np.testing.assert_allclose(array, values, rtol=1e-6)
    np.testing.assert_allclose(seen(path, indices=(1,), scale="file")[0], values[1:], rtol=1e-6)
    array, _, assumed = seen(path, 2, scale="stored")
    np.testing.assert_array_equal(array, stored, strict=True)
    assert assumed == ()


def test_numbers_of_the_request_stand_in_place_of_the_files(tmp_path):
    """Both of them settle it; one alone is taken, and the result says what was missing."""
    path = write(tmp_path / "in.tif", numbers(), scales=(0.1,), offsets=(5.0,))
    array, _, assumed = seen(path, scale=2.0, offset=1.0)
    np.testing.assert_allclose(array[0], numbers() * 2.0 + 1.0)
    assert assumed == ()
    (sentence,) = seen(path, scale=2.0)[2]
    assert "the request gives numbers without offset, and 0 was taken" in sentence
    with pytest.raises(OptionError, match="beside scale='file'"):
        OutputParams(scale="file", offset=1.0)
    with pytest.raises(OptionError, match="scale"):
        OutputParams(scale="files")


def test_the_result_says_that_a_file_states_nothing_where_its_scale_is_asked_for(tmp_path):
    """Integers would else be taken for values."""
    (sentence,) = seen(write(tmp_path / "in.tif", numbers()), scale="file")[2]
    assert sentence == "in.tif: no scale or offset is stated; the numbers were taken as stored."


def test_netcdf_is_unpacked_unasked(tmp_path):
    """Nodata, the file's and the request's, is a stored number; 0 of the unpacked ones is a value."""
    from rasterio.shutil import copy

    stored = numbers()
    copy(
        write(tmp_path / "in.tif", stored, scales=(0.5,), offsets=(-100.0,), nodata=0),
        tmp_path / "in.nc",
        driver="netCDF",
    )
    for data in (str(tmp_path / "in.nc"), f'NETCDF:"{tmp_path / "in.nc"}":Band1'):
        array, valid, assumed = seen(data)
        np.testing.assert_array_equal(valid, stored != 0)
        np.testing.assert_allclose(array[0][valid], (stored * 0.5 - 100)[valid])
        assert assumed == ()
    array, valid, assumed = seen(data, scale="stored")
    np.testing.assert_array_equal(array[0], stored, strict=True)
    np.testing.assert_array_equal(seen(data, nodata=float(stored[9, 9]))[1], stored != stored[9, 9])
    both = seen([data, str(tmp_path / "in.tif")], 2, scale="file")[0]
    np.testing.assert_allclose(both[0], both[1])


def metadata(baseline="05.11", offsets=((1, -1000), (2, -1000), (8, -500)), quantification="10000"):
    """MTD_MSIL2A.xml, as far as it is looked at."""
    listed = "".join(f'<BOA_ADD_OFFSET band_id="{band}">{offset}</BOA_ADD_OFFSET>' for band, offset in offsets)
    special = "<SPECIAL_VALUE_TEXT>{}</SPECIAL_VALUE_TEXT><SPECIAL_VALUE_INDEX>{}</SPECIAL_VALUE_INDEX>"
    return (
        '<?xml version="1.0"?><n1:Level-2A_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/">'
        f"<PROCESSING_BASELINE>{baseline}</PROCESSING_BASELINE>{special.format('NODATA', 0)}"
        f"{special.format('SATURATED', 65535)}<BOA_QUANTIFICATION_VALUE>{quantification}</BOA_QUANTIFICATION_VALUE>"
        f"<BOA_ADD_OFFSET_VALUES_LIST>{listed}</BOA_ADD_OFFSET_VALUES_LIST></n1:Level-2A_User_Product>"
    )


@pytest.fixture
def safe(tmp_path):
    """A product of Sentinel-2 L2A without its metadata, and the counts of its bands."""
    folder, names = tmp_path / SAFE, ("B02", "B03", "B8A")
    counts = [numbers(band, np.uint16, 900, 9000) for band in range(3)]
    for name, band in zip(names, counts, strict=True):
        path = folder / "GRANULE" / "L2A_T32TMT" / "IMG_DATA" / "R10m" / f"T32TMT_20240817T101559_{name}_10m.jp2"
        write(path, band, driver="JP2OpenJPEG", QUALITY="100", REVERSIBLE="YES")
    return folder, names, np.stack(counts)


def test_counts_of_sentinel2_are_those_of_all_its_years(safe):
    """The offset of each band is added to integers; reflectance and stored numbers come by the option; 0 is no data."""
    folder, names, counts = safe
    (folder / "MTD_MSIL2A.xml").write_text(metadata())
    offsets = np.array([1000, 1000, 500]).reshape(-1, 1, 1)
    there = counts[0] != 0
    array, valid, assumed = seen(str(folder), names)
    np.testing.assert_array_equal(valid, there)
    want = np.where(there, (counts.astype(int) - offsets).clip(0), 0).astype(np.uint16)
    np.testing.assert_array_equal(array, want, strict=True)
    assert assumed[0].startswith(
        "T32TMT_20240817T101559_B02_10m.jp2 and 1 more file: scale 0.0001 and offset -0.1 are stated by MTD_MSIL2A.xml"
        " (processing baseline 05.11); -1000 was added to the counts"
    )
    remedy = 'if the model takes such counts. If it takes reflectance, set scale="file". scale="stored" would'
    assert remedy in assumed[0]
    array, _, assumed = seen(str(next(folder.rglob("*B02*"))), scale=1.0, offset=-1000.0)
    np.testing.assert_array_equal(array[0], np.where(there, counts[0] - 1000.0, 0))
    assert assumed == ()
    array, valid, assumed = seen(str(folder), names, scale="file")
    np.testing.assert_allclose(array[:, there], ((counts - offsets.astype(float)) / 10000)[:, there], atol=1e-6)
    np.testing.assert_array_equal(valid, there)
    assert assumed == ()
    array, valid, assumed = seen(str(folder), names, scale="stored")
    np.testing.assert_array_equal(array, counts, strict=True)
    assert assumed == ()
    file = next(folder.rglob("*B8A*"))
    np.testing.assert_array_equal(seen(str(file))[0][0], want[2], strict=True)


def test_older_products_and_those_without_metadata_keep_their_counts(safe):
    """Where nothing says which counts they are, the result says that."""
    folder, names, counts = safe
    array, valid, assumed = seen(str(folder), names)
    np.testing.assert_array_equal(array, counts, strict=True)
    np.testing.assert_array_equal(valid, counts[0] != 0)
    assert [sentence.partition(",")[0] for sentence in assumed] == ["T32TMT_20240817T101559 is of Sentinel-2"]
    assert seen(str(folder), names, offset=-1000)[2] == seen(str(folder), names, scale="stored")[2] == ()
    (folder / "MTD_MSIL2A.xml").write_text(metadata("02.14", ()))
    np.testing.assert_array_equal(seen(str(folder), names)[0], counts, strict=True)


def test_files_made_from_a_product_warn_beside_its_metadata(safe, tmp_path):
    """Renamed bands and stacks keep their counts, and the result says that the product beside them has an offset."""
    folder, names, counts = safe
    for name, band in zip(names, counts, strict=True):
        write(folder / f"{name}.tif", band)
    write(folder / "stack.tif", *counts)
    write(folder / "dem.tif", counts[0])
    bands = [str(folder / f"{name}.tif") for name in names]
    (folder / "MTD_MSIL2A.xml").write_text(metadata())
    fact = f"MTD_MSIL2A.xml (processing baseline 05.11) in {folder.name} states the offset -1000, but the input's files"
    for data in (bands, str(folder / "stack.tif")):
        array, _, assumed = seen(data, names)
        np.testing.assert_array_equal(array, counts, strict=True)
        assert [sentence[: len(fact)] for sentence in assumed if "offset" in sentence] == [fact]
        assert not any(fact in sentence for sentence in seen(data, names, scale="stored")[2])
        assert not any(fact in sentence for sentence in seen(data, names, offset=-1000)[2])
    write(folder / "S2A_MSIL2A-preview.tif", *(band.astype(np.uint8) for band in counts))
    mask = write(folder / "GRANULE" / "L2A_T32TMT" / "QI_DATA" / "MSK_DETFOO_B02.tif", counts[0])
    for other in (str(folder / "dem.tif"), mask):
        assert seen(other)[2] == ()
    assert not any("offset" in sentence for sentence in seen(str(folder / "S2A_MSIL2A-preview.tif"), 3)[2])
    for name in ("B2.tif", "B02_clip.tif", "T32TMT_B02_10m_crop.tif"):
        assert [sentence[: len(fact)] for sentence in seen(write(folder / name, counts[0]))[2]] == [fact]
    for text in (metadata("02.14", ()), "<a>"):
        (folder / "MTD_MSIL2A.xml").write_text(text)
        assert not any("offset" in sentence for sentence in seen(bands, names)[2])
    write(tmp_path / "elsewhere" / "stack.tif", *counts)
    (tmp_path / "MTD_MSIL2A.xml").write_text(metadata())
    assert not any("offset" in sentence for sentence in seen(str(tmp_path / "elsewhere" / "stack.tif"), names)[2])


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        ("<a>", "damaged XML"),
        (metadata(quantification="0"), "other than 0"),
        (metadata(offsets=((13, -1000),)), "bands are 0 to 12"),
        ("<a/>", "has no BOA_QUANTIFICATION_VALUE"),
    ],
)
def test_wrong_metadata_of_a_product_are_refused(safe, text, fact):
    """Their offset may not be passed over."""
    folder, names, _ = safe
    (folder / "MTD_MSIL2A.xml").write_text(text)
    with pytest.raises(InputError, match=f"MTD_MSIL2A.xml.*{fact}"):
        seen(str(folder), names)


def mtl(suffix):
    """The metadata of a product of Landsat in one of their forms."""
    constants = {
        "LEVEL1_RADIOMETRIC_RESCALING": ("2.0E-05", "-0.1"),
        "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS": ("2.75e-05", "-0.2"),
    }
    groups = {
        group: {f"REFLECTANCE_MULT_BAND_{band}": scale for band in (2, 3)}
        | {f"REFLECTANCE_ADD_BAND_{band}": offset for band in (2, 3)}
        for group, (scale, offset) in constants.items()
    }
    text = elements = ""
    for group, entries in groups.items():
        rows = "".join(f"  {name} = {value}\n" for name, value in entries.items())
        text += f"GROUP = {group}\n{rows}END_GROUP = {group}\n"
        elements += f"<{group}>{''.join(f'<{name}>{value}</{name}>' for name, value in entries.items())}</{group}>"
    whole = json.dumps({"LANDSAT_METADATA_FILE": groups})
    return {"txt": text, "json": whole, "xml": f"<LANDSAT_METADATA_FILE>{elements}</LANDSAT_METADATA_FILE>"}[suffix]


@pytest.mark.parametrize("suffix", ["txt", "json", "xml"])
def test_landsat_states_reflectance_in_its_mtl_file(tmp_path, suffix):
    """Level 2 has constants of level 1 beside its own, under the same names; 0 is no data though no tag says so."""
    counts = np.stack([numbers(band, np.uint16, 7273, 30000) for band in (2, 3)])
    for band, array in zip((2, 3), counts, strict=True):
        write(tmp_path / PRODUCT / f"{PRODUCT}_SR_B{band}.TIF", array)
    (tmp_path / PRODUCT / f"{PRODUCT}_MTL.{suffix}").write_text(mtl(suffix))
    array, valid, assumed = seen(str(tmp_path / PRODUCT), ("B2", "B3"), scale="file")
    np.testing.assert_array_equal(valid, counts[0] != 0)
    np.testing.assert_allclose(array[:, valid], (counts * 2.75e-5 - 0.2)[:, valid], atol=2e-6)
    assert assumed == ()
    array, valid, assumed = seen(str(tmp_path / PRODUCT), ("B2", "B3"))
    np.testing.assert_array_equal(array, counts, strict=True)
    assert f"are stated by {PRODUCT}_MTL.{suffix}" in assumed[0]


def test_the_fill_of_hls_is_no_observation_though_no_tag_says_so(tmp_path):
    """Its items state the scale, as CF has them."""
    stored = numbers()
    stored[:4] = -9999
    path = write(
        tmp_path / "HLS.S30.T14RKV.2020123T170851.v2.0.B04.tif",
        stored,
        tags={"scale_factor": "0.0001", "add_offset": "0.0"},
    )
    array, valid, assumed = seen(path, scale="file")
    np.testing.assert_array_equal(valid, stored != -9999)
    np.testing.assert_allclose(array[0][valid], stored[valid] * 1e-4, atol=1e-7)
    assert assumed == ()


def test_masked_values_and_infinities_are_no_observation(tmp_path):
    """Of arrays and files, alone and stacked, in the bands that are chosen."""
    array = np.stack([numbers(0), numbers(1)]).astype(np.float32)
    array[1, 9, 9], array[0, 11, 11] = np.inf, -np.inf
    files = [write(tmp_path / f"{band}.tif", array[band]) for band in (0, 1)]
    for data in (array, write(tmp_path / "in.tif", *array), files):
        pixels, valid, _ = seen(data, 2)
        assert np.argwhere(~valid).tolist() == [[9, 9], [11, 11]]
        assert np.isfinite(pixels).all()
    masked = np.ma.array(np.full((2, *SIZE), -9999, np.int16), mask=False)
    masked[:, 4:] = 7
    masked[0, :4] = np.ma.masked
    pixels, valid, _ = seen(masked, 2)
    assert (valid[4:].all(), valid[:4].any(), pixels.min()) == (True, False, 0)
    assert seen(masked, indices=(1,))[1] is None


@pytest.mark.parametrize(("mode", "bands"), [("RGBA", 3), ("LA", 1), ("PA", 3)])
def test_pictures_in_memory_keep_their_alpha_as_their_files_do(tmp_path, mode, bands):
    """What is transparent is no observation."""
    image = pytest.importorskip("PIL.Image", reason="pictures come by Pillow")
    pixels = np.random.default_rng(3).integers(0, 255, (*SIZE, 4)).astype(np.uint8)
    pixels[:4, :, 3], pixels[4:, :, 3] = 0, 128
    picture = image.fromarray(pixels)
    if mode == "PA":
        alpha, picture = picture.getchannel("A"), picture.convert("RGB").quantize(8).convert("PA")
        picture.putalpha(alpha)
    picture = picture.convert(mode)
    array, valid, _ = seen(picture, bands)
    assert (valid[4:].all(), valid[:4].any()) == (True, False)
    if mode != "PA":
        picture.save(tmp_path / "in.png")
        np.testing.assert_array_equal(array, seen(str(tmp_path / "in.png"), bands)[0], strict=True)


@pytest.mark.parametrize("text", ["None", "12abc", "", "255.5"])
def test_a_nodata_that_is_no_number_is_what_gdal_makes_of_it_and_is_said(tmp_path, text):
    """GDAL takes the number that a text begins with, else 0."""
    tifffile = pytest.importorskip("tifffile", reason="it writes any tag")
    stored = np.arange(64, dtype=np.uint8).reshape(8, 8)
    tifffile.imwrite(tmp_path / "in.tif", stored, extratags=[(42113, 2, 0, text, True)])
    with rasterio.open(tmp_path / "in.tif") as file:
        expected = file.read_masks(1) != 0
    _, valid, assumed = seen(str(tmp_path / "in.tif"))
    np.testing.assert_array_equal(np.ones_like(expected) if valid is None else valid, expected)
    assert [sentence.partition(",")[0] for sentence in assumed] == (
        [f"in.tif states the nodata {text!r}"] if text in ("None", "12abc") else []
    )
