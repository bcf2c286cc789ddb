"""PluginRequest: one request of a user's that an IO Processor plugin makes the prompts and the result of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm.exceptions import VLLMValidationError
from vllm.outputs import PoolingOutput, PoolingRequestOutput

from vllm_mmout.engine.observer import blame
from vllm_mmout.engine.parts.fan_out import FanOut
from vllm_mmout.engine.parts.parts_request import Driver, PartedRequest, PartInput, StoppedError
from vllm_mmout.errors import DecodeError, InputError, MMOutError, type_and_message
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.io_plugins.foreign.calls import Calls, HangingError
from vllm_mmout.wings.io_plugins.foreign.data import RequestData

if TYPE_CHECKING:
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.processors.base import Part
    from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin

Result = TypeVar("Result")

_OF_THE_INPUT = (ValueError, TypeError, OSError)
"""What a plugin raises of an input that it cannot take; pydantic's errors are values'."""


class PluginRequest(PartedRequest):
    """One request through a plugin; nothing of it is run before its turn comes."""

    def __init__(self, plugin: Plugin, pick: str, data: Any, params: OutputParams, limit_s: float) -> None:
        self.params = params
        self._plugin = plugin
        self._pick = pick
        self._data = RequestData(pick, data, params)
        self._calls = Calls(limit_s, self._ended)
        self._most: int | None = None
        self._id = ""
        self._prompts: list[Any] = []
        self._pooling: PoolingParams | None = None
        self._token_ids: dict[int, list[int]] = {}

    @property
    def tile_params(self) -> OutputParams:
        """The params of each prompt's request: raw tensors are wanted."""
        return OutputParams(processor=self._pick).of_part()

    @property
    def can_wait(self) -> bool:
        """Nothing is read before its turn."""
        return True

    def check_tiles(self, most: int) -> None:
        """Refuse more prompts than this when the plugin has made them."""
        self._most = most

    def made_in(self, folder: Path | None) -> PluginRequest:
        """The same with a folder for the copy of a file."""
        self._data.parent = folder
        return self

    def fan_out(self, driver: Driver) -> FanOut:
        """The request as its prompts, not started; how many these are the plugin says when it is."""
        self._id = self._plugin.ids.take(driver.request_id)
        return FanOut(
            self._parts(),
            total=0,
            nbytes=1,
            picks=(self._pick,),
            join=self._join,
            deliver=dict,
            budget=driver.budget,
            wake=driver.wake,
            count=lambda _: driver.observer.tile(0),
            measure=self._measure,
            at_stop=self._calls.stop,
            traced=driver.traced,
        )

    def close(self) -> None:
        """End what may run of it."""
        self._calls.close()

    def _measure(self) -> tuple[int, int]:
        """Have the plugin make the prompts; gives their number, and the bytes of the largest one's tensors."""
        self._prompts, self._pooling = self._called("pre_process", self._made, _OF_THE_INPUT)
        count = len(self._prompts)
        if not count:
            raise self._failure("pre_process gave no prompts", None)
        if self._most is not None and count > self._most:
            raise InputError(
                f"IO plugin {self._plugin.name!r} cuts the input into {count} prompts, and a request may have"
                f" {self._most}; send a smaller input; a server's limit is --mmout-max-tiles"
            )
        return count, max(1, *map(_nbytes, self._prompts))

    def _made(self) -> tuple[list[Any], PoolingParams]:
        prompts = self._plugin.prompts(self._data.parsed(self._plugin.parse), self._id)
        return prompts, self._plugin.pooling_params()

    def _parts(self) -> Generator[PartInput, None, None]:
        """Render the prompts, each when it is asked for; none is kept."""
        try:
            for index in range(len(self._prompts)):
                yield self._part(index)
        finally:
            self._prompts.clear()

    def _part(self, index: int) -> PartInput:
        where = f"prompt {index + 1} of {len(self._prompts)} of IO plugin {self._plugin.name!r}"
        prompt, self._prompts[index] = self._prompts[index], None
        try:
            rendered: Any = self._plugin.rendered(prompt)
        except (InputError, VLLMValidationError) as error:
            raise self._blamed(InputError(f"{where}: {Exception.__str__(error)}")) from error
        except BaseException as error:
            raise self._failure(f"the model cannot be given {where}", error) from error
        self._token_ids[index] = list(rendered.get("prompt_token_ids") or [])
        pooling = None if self._pooling is None else self._pooling.clone()
        return PartInput(index, None, rendered, where=where, pooling=pooling)

    def _join(self, _pick: str, parts: Iterator[Part]) -> Any:
        """Collect the raw tensors, and have the plugin make its result of them."""
        try:
            tensors = {part.index: PoolingOutput(part.output) for part in parts}
            outputs = [
                PoolingRequestOutput(f"{self._id}-{index}", tensor, self._token_ids.get(index, []), 0, finished=True)
                for index, tensor in sorted(tensors.items())
            ]
            result = self._called("post_process", lambda: self._plugin.result(outputs, self._id))
        finally:
            self._data.close()  # here, since who closes the request may be an event loop
        if result is None:
            raise self._failure("post_process returned None; it must return a result", None)
        return result

    def _called(
        self, method: str, call: Callable[[], Result], of_the_input: tuple[type[BaseException], ...] = ()
    ) -> Result:
        """Call the plugin; whatever it raises is the request's error."""
        try:
            return self._calls.run(call)
        except (MMOutError, StoppedError):
            raise
        except of_the_input as error:
            said = f"IO plugin {self._plugin.name!r} refused its input: {type_and_message(error)}"
            raise self._blamed(InputError(self._without_folder(said))) from error
        except HangingError as error:
            hangs = f"{method} hangs: {error}; make it faster, or raise the engine's option decode_timeout_s"
            raise self._failure(hangs, None) from None
        except BaseException as error:
            raise self._failure(f"{method} failed", error) from error

    def _failure(self, what: str, error: BaseException | None) -> MMOutError:
        cause = "" if error is None else f": {type_and_message(error)}"
        return self._blamed(DecodeError(f"IO plugin {self._plugin.name!r}: {what}{cause}"))

    def _blamed(self, error: MMOutError) -> MMOutError:
        return blame(error, self._pick)

    def _without_folder(self, message: str) -> str:
        """A message without the folder of our copy, which a client must not see."""
        return message if self._data.folder is None else message.replace(f"{self._data.folder}/", "")

    def _ended(self) -> None:
        self._plugin.ids.release(self._id)
        self._data.close()


def _nbytes(value: Any) -> int:
    """Bytes of the tensors, arrays and files in a prompt."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value)) if value and not isinstance(value[0], int) else 8 * len(value)
    nbytes = getattr(value, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0
