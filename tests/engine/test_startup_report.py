"""What goes wrong in an engine's process at start-up, raised where the engine is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the report is part of the engine")
pytestmark = pytest.mark.engine

from vllm_mmout.engine.hooks import startup  # noqa: E402 - after the import that may skip
from vllm_mmout.errors import ModelError, RegistrationError  # noqa: E402 - as above


class SpecialError(ModelError):
    """An author's subclass, which the frontend need not know."""


ENDED = "Engine core initialization failed. See root cause above."
"""vLLM's own words for the end of a process."""


def tell(error):
    """What happens in the engine's process."""
    with pytest.raises(Exception, match=str(error)), startup.reporting_to_frontend():
        raise error


def start(*errors):
    """What happens where the engine is started; gives the report's folder before vLLM's own error, if any."""
    with startup.raising_worker_error():
        FOLDERS.append(Path(os.environ[startup.ENVIRONMENT]).parent)
        assert FOLDERS[-1].is_dir()
        for error in errors:
            tell(error)
        if errors:
            raise RuntimeError(ENDED)


FOLDERS = []
"""The folders of the reports so far."""


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ModelError("no weight"), ModelError, "^no weight$"),
        (RegistrationError("no class"), RegistrationError, "^no class$"),
        (SpecialError("no luck"), ModelError, "^no luck$"),
        (OSError("no disk"), ModelError, "^the model cannot be loaded: OSError: no disk$"),
    ],
)
def test_the_error_is_raised_where_the_engine_is_started(error, kind, says):
    """Its class and its words arrive; vLLM's own error is the cause, and nothing is left behind."""
    with pytest.raises(kind, match=says) as raised:
        start(error)
    assert type(raised.value) is kind
    assert str(raised.value.__cause__) == ENDED
    assert startup.ENVIRONMENT not in os.environ
    assert not FOLDERS[-1].exists()


def test_an_error_without_report_stays_as_it_is():
    """What vLLM itself raises is not touched."""
    original = RuntimeError("of vLLM")
    with pytest.raises(RuntimeError) as raised, startup.raising_worker_error():
        raise original
    assert raised.value is original


def test_in_one_process_the_error_itself_arrives():
    """An engine without processes of its own raises what was raised, once."""
    original = ModelError("no weight")
    with pytest.raises(ModelError) as raised, startup.raising_worker_error(), startup.reporting_to_frontend():
        raise original
    assert raised.value is original


def test_the_first_of_several_workers_is_enough():
    """Each of several workers may tell; one report is read, whole."""
    with pytest.raises(ModelError, match=r"^worker [01]$"):
        start(ModelError("worker 0"), ModelError("worker 1"))


def test_a_start_that_succeeds_leaves_nothing():
    """No folder, no variable of the environment."""
    start()
    assert not FOLDERS[-1].exists()
    assert startup.ENVIRONMENT not in os.environ


def test_nobody_listening_is_no_error():
    """A worker that was started by somebody else raises as ever."""
    with pytest.raises(ModelError, match="no weight"), startup.reporting_to_frontend():
        raise ModelError("no weight")
