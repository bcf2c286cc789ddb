"""Library for georeferenced rasters, their tiles and their polygons. It works without torch and vLLM.

The other layers import names from this package, never from its submodules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.geo.area.geojson import area_json, area_of, area_text
    from vllm_mmout.geo.area.placed import PlacedArea
    from vllm_mmout.geo.area.placing import placed_area, window_around
    from vllm_mmout.geo.area.polygons import Area, AreaFeature
    from vllm_mmout.geo.raster.areas import area_km2, pixel_areas
    from vllm_mmout.geo.raster.atomic import atomic_file, atomic_folder
    from vllm_mmout.geo.raster.bands import (
        NIR_BANDS,
        meanings,
        possible_sensors,
        says_nothing,
        trailing_band,
        understood,
    )
    from vllm_mmout.geo.raster.bounding_box import window_of_box
    from vllm_mmout.geo.raster.crs.text import proj_crs, rasterio_crs, same_system
    from vllm_mmout.geo.raster.dates import (
        date_of_file_item,
        date_of_items,
        date_of_name,
        date_of_raster,
        days_of_times,
    )
    from vllm_mmout.geo.raster.files import READ_AHEAD_BYTES, FileWithNeighbours, Neighbours, SharedFile
    from vllm_mmout.geo.raster.formats import (
        RASTER_SUFFIXES,
        band_key,
        band_of_file,
        file_stem,
        folders_in,
        in_bucket,
        is_address,
        is_gdal_name,
        is_tiff,
        is_zarr,
        printable_name,
        rasters_in,
        rasters_of,
        without_secrets,
    )
    from vllm_mmout.geo.raster.gdal import gdal_files
    from vllm_mmout.geo.raster.georeference import Georeference, epsg_code
    from vllm_mmout.geo.raster.geotiff import RasterMetadata, are_classes, block_limit
    from vllm_mmout.geo.raster.ground_points import Affine, GroundControlPoint
    from vllm_mmout.geo.raster.ground_steps import ground_steps
    from vllm_mmout.geo.raster.mosaic.map_grid import MapGrid, PlacedRaster
    from vllm_mmout.geo.raster.mosaic.warped_raster import WarpedRaster, warped
    from vllm_mmout.geo.raster.netcdf import check_netcdf, write_netcdf
    from vllm_mmout.geo.raster.nodata import as_pixels_have_it, can_hold, format_nodata, may_be_invalid, observed
    from vllm_mmout.geo.raster.opened import declared_size, open_raster, read_raster
    from vllm_mmout.geo.raster.orientation_and_palette import as_seen
    from vllm_mmout.geo.raster.packing import Packing
    from vllm_mmout.geo.raster.picture import PICTURE_ERRORS, picture_colours, picture_raster
    from vllm_mmout.geo.raster.places import BucketPath, is_folder, place_of, same_file
    from vllm_mmout.geo.raster.products.sentinel2 import sentinel2_doubt
    from vllm_mmout.geo.raster.raster import Raster, Window, as_window, nearest_pixels
    from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress, address_fault, key_fault
    from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of
    from vllm_mmout.geo.raster.remote.buckets.bucket_file import open_in_bucket
    from vllm_mmout.geo.raster.remote.buckets.listing import scenes_below
    from vllm_mmout.geo.raster.remote.buckets.redirect_check import redirect_fault
    from vllm_mmout.geo.raster.remote.buckets.stores import object_store
    from vllm_mmout.geo.raster.remote.buckets.writing import (
        check_bucket,
        download,
        identity_in_bucket,
        remove_in_bucket,
    )
    from vllm_mmout.geo.raster.remote.connections import Connections, ResolvedAddress, proxy_of
    from vllm_mmout.geo.raster.remote.fetch_options import RETRIES, FetchOptions
    from vllm_mmout.geo.raster.remote.fetcher import certificate_fault, status_phrase, timeout_phrase
    from vllm_mmout.geo.raster.remote.http_file import open_remote
    from vllm_mmout.geo.raster.sensors import OTHER_SENSOR, sensor_of
    from vllm_mmout.geo.raster.stack.clouds import (
        CLOUD_CODES,
        CloudCodes,
        CloudLayer,
        OpenWithoutClouds,
        cloud_codes_of,
    )
    from vllm_mmout.geo.raster.stack.stack import DATES, DESCRIBED_BY, FINER, Layer, OpenStack, pixel_area
    from vllm_mmout.geo.raster.tags import GeoTag, checked_xml, read_directories
    from vllm_mmout.geo.raster.tiff import first_of
    from vllm_mmout.geo.raster.unpacked import OpenUnpacked, Unpacking
    from vllm_mmout.geo.raster.windowed import OpenArray, OpenRaster
    from vllm_mmout.geo.raster.writing import GeoTiffBlocks, write_geotiff, write_geotiff_here
    from vllm_mmout.geo.tiling.blending import Blend, Contribution, averaged, axis_weights
    from vllm_mmout.geo.tiling.grid import Cell, Plan, TileGrid, reflected
    from vllm_mmout.geo.vectors.polygon import PIXEL_TRANSFORM, Lattice, Polygons
    from vllm_mmout.geo.vectors.trace import trace_polygons

__all__ = [
    "CLOUD_CODES", "DATES", "DESCRIBED_BY", "FINER", "NIR_BANDS", "OTHER_SENSOR", "PICTURE_ERRORS", "PIXEL_TRANSFORM",
    "RASTER_SUFFIXES", "READ_AHEAD_BYTES", "RETRIES", "Affine", "Area", "AreaFeature", "Blend", "BucketPath", "Cell",
    "CloudCodes", "CloudLayer", "Connections", "Contribution", "FetchOptions", "FileAddress", "FileWithNeighbours",
    "GeoTag", "GeoTiffBlocks", "Georeference", "GroundControlPoint", "Lattice", "Layer", "MapGrid", "Neighbours",
    "OpenArray", "OpenRaster", "OpenStack", "OpenUnpacked", "OpenWithoutClouds", "Packing", "PlacedArea",
    "PlacedRaster", "Plan", "Polygons", "Raster", "RasterMetadata", "ResolvedAddress", "SharedFile", "TileGrid",
    "Unpacking", "WarpedRaster", "Window", "address_fault", "are_classes", "area_json", "area_km2", "area_of",
    "area_text", "as_pixels_have_it", "as_seen", "as_window", "atomic_file", "atomic_folder", "averaged",
    "axis_weights", "band_key", "band_of_file", "block_limit", "can_hold", "certificate_fault", "check_bucket",
    "check_netcdf", "checked_xml", "cloud_codes_of", "date_of_file_item", "date_of_items", "date_of_name",
    "date_of_raster", "days_of_times", "declared_size", "download", "epsg_code", "errors_of", "file_stem", "first_of",
    "folders_in", "format_nodata", "gdal_files", "ground_steps", "identity_in_bucket", "in_bucket", "is_address",
    "is_folder", "is_gdal_name", "is_tiff", "is_zarr", "key_fault", "may_be_invalid", "meanings", "nearest_pixels",
    "object_store", "observed", "open_in_bucket", "open_raster", "open_remote", "picture_colours", "picture_raster",
    "pixel_area", "pixel_areas", "place_of", "placed_area", "possible_sensors", "printable_name", "proj_crs",
    "proxy_of", "rasterio_crs", "rasters_in", "rasters_of", "read_directories", "read_raster", "redirect_fault",
    "reflected", "remove_in_bucket", "same_file", "same_system", "says_nothing", "scenes_below", "sensor_of",
    "sentinel2_doubt", "status_phrase", "timeout_phrase", "trace_polygons", "trailing_band", "understood", "warped",
    "window_around", "window_of_box", "without_secrets", "write_geotiff", "write_geotiff_here", "write_netcdf",
]  # fmt: skip

_HOMES = {
    "vllm_mmout.geo.area.geojson": "area_json area_of area_text",
    "vllm_mmout.geo.area.placed": "PlacedArea",
    "vllm_mmout.geo.area.placing": "placed_area window_around",
    "vllm_mmout.geo.area.polygons": "Area AreaFeature",
    "vllm_mmout.geo.raster.areas": "area_km2 pixel_areas",
    "vllm_mmout.geo.raster.orientation_and_palette": "as_seen",
    "vllm_mmout.geo.raster.atomic": "atomic_file atomic_folder",
    "vllm_mmout.geo.raster.bands": ("NIR_BANDS meanings possible_sensors says_nothing trailing_band understood"),
    "vllm_mmout.geo.raster.bounding_box": "window_of_box",
    "vllm_mmout.geo.raster.crs.text": "proj_crs rasterio_crs same_system",
    "vllm_mmout.geo.raster.dates": "date_of_file_item date_of_items date_of_name date_of_raster days_of_times",
    "vllm_mmout.geo.raster.files": "FileWithNeighbours Neighbours READ_AHEAD_BYTES SharedFile",
    "vllm_mmout.geo.raster.formats": (
        "RASTER_SUFFIXES band_key band_of_file file_stem folders_in in_bucket is_address is_gdal_name is_tiff is_zarr "
        "printable_name rasters_in rasters_of without_secrets"
    ),
    "vllm_mmout.geo.raster.gdal": "gdal_files",
    "vllm_mmout.geo.raster.georeference": "Georeference epsg_code",
    "vllm_mmout.geo.raster.geotiff": "RasterMetadata are_classes block_limit",
    "vllm_mmout.geo.raster.ground_points": "Affine GroundControlPoint",
    "vllm_mmout.geo.raster.ground_steps": "ground_steps",
    "vllm_mmout.geo.raster.opened": "declared_size open_raster read_raster",
    "vllm_mmout.geo.raster.packing": "Packing",
    "vllm_mmout.geo.raster.picture": "PICTURE_ERRORS picture_colours picture_raster",
    "vllm_mmout.geo.raster.mosaic.map_grid": "MapGrid PlacedRaster",
    "vllm_mmout.geo.raster.mosaic.warped_raster": "WarpedRaster warped",
    "vllm_mmout.geo.raster.netcdf": "check_netcdf write_netcdf",
    "vllm_mmout.geo.raster.nodata": "as_pixels_have_it can_hold format_nodata may_be_invalid observed",
    "vllm_mmout.geo.raster.raster": "Raster Window as_window nearest_pixels",
    "vllm_mmout.geo.raster.places": "BucketPath is_folder place_of same_file",
    "vllm_mmout.geo.raster.remote.buckets.bucket_file": "open_in_bucket",
    "vllm_mmout.geo.raster.remote.buckets.redirect_check": "redirect_fault",
    "vllm_mmout.geo.raster.remote.buckets.bucket_errors": "errors_of",
    "vllm_mmout.geo.raster.remote.buckets.listing": "scenes_below",
    "vllm_mmout.geo.raster.remote.buckets.bucket_address": "FileAddress address_fault key_fault",
    "vllm_mmout.geo.raster.remote.buckets.stores": "object_store",
    "vllm_mmout.geo.raster.remote.buckets.writing": "check_bucket download identity_in_bucket remove_in_bucket",
    "vllm_mmout.geo.raster.remote.connections": "Connections ResolvedAddress proxy_of",
    "vllm_mmout.geo.raster.remote.fetch_options": "FetchOptions RETRIES",
    "vllm_mmout.geo.raster.remote.fetcher": "certificate_fault status_phrase timeout_phrase",
    "vllm_mmout.geo.raster.remote.http_file": "open_remote",
    "vllm_mmout.geo.raster.products.sentinel2": "sentinel2_doubt",
    "vllm_mmout.geo.raster.sensors": "OTHER_SENSOR sensor_of",
    "vllm_mmout.geo.raster.stack.clouds": "CLOUD_CODES CloudCodes CloudLayer OpenWithoutClouds cloud_codes_of",
    "vllm_mmout.geo.raster.stack.stack": "DATES DESCRIBED_BY FINER Layer OpenStack pixel_area",
    "vllm_mmout.geo.raster.tags": "GeoTag checked_xml read_directories",
    "vllm_mmout.geo.raster.tiff": "first_of",
    "vllm_mmout.geo.raster.unpacked": "OpenUnpacked Unpacking",
    "vllm_mmout.geo.raster.windowed": "OpenArray OpenRaster",
    "vllm_mmout.geo.raster.writing": "GeoTiffBlocks write_geotiff write_geotiff_here",
    "vllm_mmout.geo.tiling.blending": "Blend Contribution averaged axis_weights",
    "vllm_mmout.geo.tiling.grid": "Cell Plan TileGrid reflected",
    "vllm_mmout.geo.vectors.polygon": "Lattice PIXEL_TRANSFORM Polygons",
    "vllm_mmout.geo.vectors.trace": "trace_polygons",
}
"""Public names that are imported on first use: module path -> names defined in the module, separated by spaces."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
