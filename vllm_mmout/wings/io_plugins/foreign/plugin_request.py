"""Run requests with an IO Processor plugin, which creates the prompts and converts the model's outputs to a result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm.exceptions import VLLMValidationError
from vllm.outputs import PoolingOutput, PoolingRequestOutput

from vllm_mmout.engine.observer import blame
from vllm_mmout.engine.request.request import PartInput, Request
from vllm_mmout.engine.scene.lane import StoppedError
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.errors import DecodeError, InputError, MMOutError, type_and_message
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.part import Part
from vllm_mmout.wings.io_plugins.foreign.plugin_input import RequestData
from vllm_mmout.wings.io_plugins.foreign.time_limited_calls import HangingError, TimeLimitedCalls

if TYPE_CHECKING:
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin

Result = TypeVar("Result")

_INPUT_ERRORS = (ValueError, TypeError, OSError)
"""Exceptions from a plugin that are reported as errors in the client's input. ValueError includes pydantic's
ValidationError."""


class PluginRequest(Run):
    """Request whose prompts and result are computed by an IO Processor plugin.

    No plugin code runs before the scheduler starts the request.
    """

    def __init__(self, plugin: Plugin, processor_name: str, data: Any, request: Request, limit_s: float) -> None:
        params = OutputParams(processor=processor_name).of_part()  # raw tensors are wanted
        super().__init__(request, (processor_name,), params)
        self.can_wait = True
        self._plugin = plugin
        self._processor_name = processor_name
        self._data = RequestData(processor_name, data, request.params)
        self._calls = TimeLimitedCalls(limit_s, self._closed)
        self._most: int | None = None
        self._id = ""
        self._prompts: list[Any] = []
        self._pooling: PoolingParams | None = None
        self._token_ids: dict[int, list[int]] = {}

    def check_tiles(self, most: int) -> None:
        """Set the maximum number of tiles, which `measure` will check. Each prompt of the plugin counts as a tile.

        `measure` raises InputError if there are more prompts. The check waits for `measure`, which creates the prompts.
        """
        self._most = most

    def attach(self, budget: TileBudget, wake: Callable[[], None], **options: Any) -> None:
        """Attach the request to the scheduler, and reserve an id for the request.

        ``budget`` limits the tiles in flight of all requests together. ``wake`` is a function that the request calls
        when the scheduler must run.
        """
        super().attach(budget, wake, **options)
        self._id = self._plugin.ids.take(self.request.request_id)

    def stopping(self) -> None:
        """Stop waiting for the plugin when the request is stopped. The waiting thread then raises StoppedError."""
        self._calls.stop()

    def close(self) -> None:
        """Stop waiting for running plugin calls. When the last of them returns, delete the input's temporary copy."""
        self._calls.close()

    def measure(self) -> tuple[int, int]:
        """Create the request's prompts. Return the number of prompts, and the size of the largest prompt in bytes.

        The plugin's ``pre_process`` creates the prompts.
        """
        self._data.parent = self.folder
        self._prompts, self._pooling = self._call_plugin("pre_process", self._made, _INPUT_ERRORS)
        count = len(self._prompts)
        if not count:
            raise self._failure("pre_process returned no prompts", None)
        if self._most is not None and count > self._most:
            raise InputError(
                f"IO plugin {self._plugin.name!r} cuts the input into {count} prompts, and a request may have at most"
                f" {self._most}; send a smaller input, or raise a server's limit with --mmout-max-tiles"
            )
        return count, max(1, *map(_nbytes, self._prompts))

    def _made(self) -> tuple[list[Any], PoolingParams]:
        prompts = self._plugin.prompts(self._data.parse_with(self._plugin.parse), self._id)
        return prompts, self._plugin.pooling_params()

    def parts(self) -> Generator[PartInput, None, None]:
        """Convert the plugin's prompts to engine inputs one by one, and yield each engine input."""
        try:
            for index in range(len(self._prompts)):
                if not self.reserve():
                    return
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
        return PartInput((Part(index, None, None),), rendered, name_of=lambda _: where, pooling=pooling)

    def join(self, _processor_name: str, parts: Iterator[Part]) -> Any:
        """Collect the model's output tensors for all prompts of the request, and let the plugin compute the result."""
        try:
            tensors = {part.index: PoolingOutput(part.output) for part in parts}
            outputs = [
                PoolingRequestOutput(f"{self._id}-{index}", tensor, self._token_ids.get(index, []), 0, finished=True)
                for index, tensor in sorted(tensors.items())
            ]
            result = self._call_plugin("post_process", lambda: self._plugin.result(outputs, self._id))
        finally:
            self._data.close()  # here, because the event loop may call close(), and must not block
        if result is None:
            raise self._failure("post_process returned None; it must return a result", None)
        return result

    def _call_plugin(
        self, method: str, call: Callable[[], Result], input_errors: tuple[type[BaseException], ...] = ()
    ) -> Result:
        """Call a method of the plugin, and convert an exception to an error of this request."""
        try:
            return self._calls.run(call)
        except (MMOutError, StoppedError):
            raise
        except input_errors as error:
            reason = f"IO plugin {self._plugin.name!r} refused its input: {type_and_message(error)}"
            raise self._blamed(InputError(self._without_folder(reason))) from error
        except HangingError as error:
            hangs = f"{method} hangs: {error}; make it faster, or raise the engine's option decode_timeout_s"
            raise self._failure(hangs, None) from None
        except BaseException as error:
            raise self._failure(f"{method} failed", error) from error

    def _failure(self, problem: str, error: BaseException | None) -> MMOutError:
        cause = "" if error is None else f": {type_and_message(error)}"
        return self._blamed(DecodeError(f"IO plugin {self._plugin.name!r}: {problem}{cause}"))

    def _blamed(self, error: MMOutError) -> MMOutError:
        return blame(error, self._processor_name)

    def _without_folder(self, message: str) -> str:
        """Remove the path of the temporary input folder from an error message, because clients must not see it."""
        return message if self._data.folder is None else message.replace(f"{self._data.folder}/", "")

    def _closed(self) -> None:
        self._plugin.ids.release(self._id)
        self._data.close()


def _nbytes(value: Any) -> int:
    """Return the total size in bytes of all tensors, arrays and files in a prompt."""
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
