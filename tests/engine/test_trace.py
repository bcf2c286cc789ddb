"""A traced engine: each tile has each stage once, in order, from the process that does it; the file is a trace."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections import defaultdict
from itertools import chain, pairwise

import numpy as np
import pytest
from model_folders import engine_elsewhere, engine_here
from water_oracle import scene

from vllm_mmout import OutputParams
from vllm_mmout.engine.settings import set_option
from vllm_mmout.engine.trace import STAGES, Trace, Traced
from vllm_mmout.errors import OptionError, SaveError

pytestmark = pytest.mark.engine
TILE = 64
IN_THE_ENGINE = {"load", "forward", "reduce", "copy"}


def events(file):
    """What a trace holds, read as Perfetto does: the closing bracket may be missing."""
    return json.loads(file.read_text().rstrip().rstrip(",") + "]")


def spans(found):
    """(name, request, tile) -> (begin, end, process, thread, event), each once."""
    table = {}
    waits = {}
    for one in found:
        event = one
        key = event["name"], event.get("args", {}).get("request"), event.get("args", {}).get("tile")
        if event["ph"] == "e":
            key, begun = waits.pop((event["name"], event["id"]))
            assert begun["pid"] == event["pid"]
            event = {**begun, "dur": event["ts"] - begun["ts"]}
        elif event["ph"] == "b":
            waits[event["name"], event["id"]] = key, event
            continue
        elif event["ph"] != "X" or event["name"] == "step":
            continue
        assert key not in table, f"{key} is there twice"
        table[key] = event["ts"], event["ts"] + event["dur"], event["pid"], event["tid"], event
    assert not waits
    return table


@pytest.fixture(scope="module")
def traced(water_index, tmp_path_factory):
    """The events of a scene of twelve tiles, one without an observation, and of an input that fits one forward."""
    file = tmp_path_factory.mktemp("traced") / "trace.json"
    file.write_text("[\nof a run before")
    llm = engine_elsewhere(water_index, additional_config={"mmout": {"trace": str(file)}})
    try:
        pixels = scene(1, 4 * TILE, 3 * TILE)
        pixels[:, :TILE, :TILE] = 0
        whole, single = llm.generate([pixels, scene(2)], OutputParams(tile=TILE, nodata=0), use_tqdm=False)
        plain = llm.generate(pixels[:, TILE:], OutputParams(tile=TILE), use_tqdm=False)[0]
        assert np.array_equal(whole.outputs.array[:, TILE:], plain.outputs.array)
        return events(file), whole.request_id, single.request_id
    finally:
        llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def names(traced):
    """The processes by id."""
    return {event["pid"]: event["args"]["name"] for event in traced[0] if event["name"] == "process_name"}


def tiles_of(table, stage, request):
    """The tiles of a scene that have a stage, block by block."""
    events = [span[4]["args"] for (name, of, tile), span in table.items() if (name, of) == (stage, request)]
    return [[*range(args["tile"], args["tile"] + args["tiles"])] for args in events]


def test_each_tile_has_each_stage_once_in_order(traced):
    """A stage of a block begins when the one before has ended; those of a block are joined by arrows."""
    found, request, _ = traced
    table = spans(found)
    assert sorted(chain.from_iterable(tiles_of(table, "read", request))) == [*range(12)]
    blocks = tiles_of(table, "forward", request)
    assert sorted(chain.from_iterable(blocks)) == [*range(1, 12)]
    for stage in STAGES[STAGES.index("load") :]:
        assert [tiles for tiles in tiles_of(table, stage, request) if tiles != [0]] == blocks
    for first, *_ in blocks:
        ends = 0.0
        ids = set()
        for stage in STAGES:
            if (stage, request, first) not in table:
                assert stage in ("read", "map")  # a block that was cut off from one that was read together
                continue
            began, ended, _, _, event = table[stage, request, first]
            assert ends <= began + 0.001 <= ended + 0.002, (first, stage)
            ends = ended
            assert (event["flow_in"], event["flow_out"]) == (stage != STAGES[0], stage != STAGES[-1])
            ids.add(event["bind_id"])
        assert len(ids) == 1
    assert len({table["forward", request, first][4]["bind_id"] for first, *_ in blocks}) == len(blocks)


def test_a_tile_that_is_not_sent_has_what_was_done_with_it(traced):
    """Of one without an observation there is what was read, and what was made of it."""
    found, request, _ = traced
    assert {name for name, of, tile in spans(found) if of == request and tile == 0} == {"read", "blend", "write"}


def test_an_input_that_fits_one_forward_has_the_same_stages(traced):
    """A single request is told of as one tile is."""
    found, _, request = traced
    table = spans(found)
    assert {name for name, of, _ in table if of == request} == set(STAGES)
    ends = [table[stage, request, None][:2] for stage in STAGES]
    assert all(one[1] <= other[0] + 0.001 for one, other in pairwise(ends))


def test_stages_come_from_the_process_that_does_them(traced, names):
    """The engine's processes tell of the forward, of what is around it the user's; steps come from the core."""
    found, request, _ = traced
    of_process = defaultdict(set)
    for event in found:
        if event["ph"] != "M":
            of_process[names[event["pid"]]].add(event["name"])
    assert of_process.pop("frontend") == {*STAGES, "request", "finish", "deliver"} - IN_THE_ENGINE
    assert set.union(*of_process.values()) == {*IN_THE_ENGINE, "step"}
    assert "step" in of_process["EngineCore"]
    table = spans(found)
    assert os.getpid() == table["read", request, 0][2] != table["forward", request, 1][2]


def test_threads_are_named(traced):
    """Who looks at the picture sees which thread reads, and which joins."""
    found, request, _ = traced
    threads = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    table = spans(found)
    assert threads[table["read", request, 0][3]] == "mmout-read"
    assert threads[table["blend", request, 1][3]] == "mmout-join"


def test_the_request_is_around_its_tiles(traced):
    """The span of a scene begins before its first tile is read, and ends after the result was delivered."""
    found, request, _ = traced
    table = spans(found)
    began, ended, *_ = table["request", request, None]
    assert began <= min(span[0] for (_, of, tile), span in table.items() if of == request and tile is not None)
    assert table["finish", request, None][1] <= table["deliver", request, None][1] <= ended


def test_untraced_requests_have_no_name(llm, sent):
    """Nothing travels with the requests of an engine without a trace."""
    llm.generate(scene(1, 2 * TILE, TILE), OutputParams(tile=TILE), use_tqdm=False)
    assert sent
    assert all("mmout_traced" not in request.pooling_params.extra_kwargs for request in sent)


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    """Before an engine is started, an error names the file."""
    with pytest.raises(SaveError, match=r"nowhere/trace\.json cannot be written: No such file"):
        Trace.begin(str(tmp_path / "nowhere" / "trace.json"))


def test_a_file_that_is_no_trace_is_kept(tmp_path):
    """A slip of the pen, as the scene's own name, costs no file."""
    (tmp_path / "scene.tif").write_bytes(b"II*")
    with pytest.raises(SaveError, match="holds something else"):
        Trace.begin(str(tmp_path / "scene.tif"))
    assert (tmp_path / "scene.tif").read_bytes() == b"II*"


def test_a_model_folder_names_no_trace(water_index, tmp_path):
    """What comes with a model says not where this machine writes."""
    shutil.copytree(water_index, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["mmout"] = {**config.get("mmout", {}), "trace": str(tmp_path / "trace.json")}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(OptionError, match="which only the engine argument may set"):
        engine_here(tmp_path / "model")
    assert not (tmp_path / "trace.json").exists()


def test_a_full_disk_ends_the_trace_alone(tmp_path, caplog):
    """What cannot be written is said once, and fails nothing."""
    trace = Trace(str(tmp_path / "trace.json"))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, trace._descriptor)
    os.close(full)
    with caplog.at_level("ERROR"):
        for tile in range(3):
            Traced(trace, "a", tile).stage("read", 0.0, 1.0)
    assert caplog.text.count("the trace ends here") == 1
    assert "No space left" in caplog.text


def test_the_flag_keeps_what_additional_config_says():
    """What a user has set beside it stays."""
    arguments = argparse.Namespace(additional_config={"a": 1, "mmout": {"decode_threads": 2}})
    set_option(arguments, "trace", "t.json")
    assert arguments.additional_config == {"a": 1, "mmout": {"decode_threads": 2, "trace": "t.json"}}
    set_option(empty := argparse.Namespace(), "trace", "t.json")
    assert empty.additional_config == {"mmout": {"trace": "t.json"}}
