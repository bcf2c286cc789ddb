from __future__ import annotations

import subprocess
import sys
import textwrap
import types

import pytest
from hypothesis import settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="processors are given torch tensors")

import right_processors as right  # noqa: E402 - needs torch
import wrong_processors as wrong  # noqa: E402

import vllm_mmout.testing  # noqa: E402
from vllm_mmout import OutputParams  # noqa: E402
from vllm_mmout.errors import OptionError  # noqa: E402
from vllm_mmout.processors import SegmentationProcessor  # noqa: E402
from vllm_mmout.testing import PROMISES, check_output_processor, model_outputs, tensors  # noqa: E402
from vllm_mmout.testing.case import BrokenPromiseError  # noqa: E402
from vllm_mmout.testing.promises import grouped_equals_single  # noqa: E402

pytestmark = pytest.mark.engine

FEW = settings(max_examples=15, derandomize=True, database=None)
MAPS = tensors(("n", 2, "h", "w"), dtype=("float32", "float16"))
FINITE = tensors(("n", "k"), dtype="float32", elements=st.floats(-9, 9, width=32))


@pytest.mark.parametrize("make", [right.Right, right.RightLock, right.RightRecord], ids=lambda make: make.__name__)
def test_right_processors_pass(make):
    """Right processors pass on drawn outputs of any layout, values and dtype."""
    check_output_processor(make, outputs=MAPS, settings=FEW)


def test_dicts_of_tensors_pass():
    """A processor of several tensors passes on dicts of them."""
    outputs = model_outputs({"a": ("n", "k"), "b": ("n", "k", 2)}, {"b": "int64"})
    check_output_processor(right.RightDict, outputs=outputs, settings=FEW)


def test_a_late_decoder_passes_when_it_is_allowed():
    """An attribute that the author names may change, all others may not."""
    check_output_processor(right.RightLazyDecoder, outputs=FINITE, allow=["_decoder"], settings=FEW)
    with pytest.raises(AssertionError, match="RightLazyDecoder breaks the promise 'keeps nothing of a request'"):
        check_output_processor(right.RightLazyDecoder, outputs=FINITE, allow=["_encoder"], settings=FEW)


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        (wrong.ReturnsList, "what reduce returns travels"),
        (wrong.KeepsParams, "keeps nothing of a request"),
        (wrong.Random, "is deterministic"),
        (wrong.SoftmaxOverRequests, "grouped equals single"),
        (wrong.WritesItsInput, "leaves its inputs alone"),
        (wrong.WritesRaw, "leaves its inputs alone"),
        (wrong.GivesUpTogether, "answers bad values"),
        (wrong.AssemblesAList, "assembles one part"),
        (wrong.Raises, "answers or refuses"),
    ],
)
def test_wrong_processors_are_caught_on_drawn_outputs(make, promise):
    """The check raises one AssertionError that names the class and the promise, with the example beside it."""
    with pytest.raises(BrokenPromiseError, match=f"{make.__name__} breaks the promise '{promise}'") as caught:
        check_output_processor(make, outputs=FINITE, settings=FEW)
    assert isinstance(caught.value, AssertionError)
    assert "outputs=tensor(" in "".join(caught.value.__notes__)


def test_the_length_of_axis_one_is_the_models_own():
    """Classes or features are never none, so that a processor may rely on one; rows and columns may be."""
    with pytest.raises(BrokenPromiseError, match="RaisesForEmpty breaks the promise 'answers empty axes'"):
        check_output_processor(wrong.RaisesForEmpty, outputs=tensors(("n", 2, "rows"), dtype="float32"), settings=FEW)
    check_output_processor(wrong.RaisesForEmpty, outputs=tensors(("n", 2), dtype="float32"), settings=FEW)


@pytest.mark.parametrize(
    ("make", "promise"), [(wrong.SharedScratch, "is thread safe"), (wrong.RemembersTheFirst, "is order free")]
)
def test_allowed_state_that_shows_is_caught(make, promise):
    """State that is allowed to change must still not show in results."""
    with pytest.raises(BrokenPromiseError, match=f"breaks the promise '{promise}'"):
        check_output_processor(make, [torch.tensor([[1.0], [2.0]])], allow=["scratch", "scale"], settings=FEW)


def test_the_example_is_small():
    """A mistake that takes two requests and a value above 3 is shown on two requests of one such value each."""

    class Wrong(right.Right):
        def reduce(self, output, params):
            return output + 1 if len(output) > 1 and (output > 3).any() else output

    outputs = tensors(("n", (1, 9), (1, 9)), dtype="float32", elements=st.floats(-9, 9, width=32))
    with pytest.raises(BrokenPromiseError, match="of 2 requests together") as caught:
        check_output_processor(
            Wrong, outputs, promises=[grouped_equals_single], settings=settings(FEW, max_examples=200)
        )
    notes = " ".join("".join(caught.value.__notes__).split())
    assert "outputs=tensor([[[4.]], [[4.]]])" in notes


def test_an_example_that_gets_smaller_shows_the_same_mistake():
    """The promise that was found broken first is the one reported, also where smaller examples break another."""

    def is_short(case):
        if case.outputs.shape[1] > 2:
            raise BrokenPromiseError("more than 2")

    def is_not_two(case):
        if case.outputs.shape[1] == 2:
            raise BrokenPromiseError("just 2")

    outputs = st.sampled_from([torch.zeros(1, k) for k in range(1, 40)])
    with pytest.raises(BrokenPromiseError, match="'is short': more than 2") as caught:
        check_output_processor(right.Right, outputs, promises=[is_short, is_not_two], settings=FEW)
    assert "outputs=tensor([[0., 0., 0.]])" in "".join(caught.value.__notes__)


def test_what_hangs_is_an_error_that_says_where():
    """A call that does not come back fails the check, once, with the line at which it is."""
    try:
        with pytest.raises(
            BrokenPromiseError, match=r"HangsForNan: answers bad values: not back after 1 s; .*in \w+\(\)"
        ):
            check_output_processor(wrong.HangsForNan, outputs=FINITE, settings=FEW, hangs_after_s=1.0)
    finally:
        wrong.HELD.set()


def test_a_failure_that_does_not_come_back_is_told():
    """What fails once and not again on the same input is reported as that, with what was seen."""
    left = [True]

    class Once(right.Right):
        def decode(self, raw, params, state=None):
            if raw.numel() > 3 and left:
                left.pop()
                raise LookupError("only once")
            return super().decode(raw, params)

    with pytest.raises(BrokenPromiseError, match=r"LookupError: only once.*\(not every time"):
        check_output_processor(Once, outputs=FINITE, settings=FEW, allow=["left"])


def test_refusing_everything_is_no_pass():
    """A processor that refuses every example was not checked at all: that is a failure."""
    with pytest.raises(
        BrokenPromiseError, match=r"Refuses refused every example.*DecodeError: not for me.*Give outputs="
    ):
        check_output_processor(wrong.Refuses, outputs=FINITE, settings=FEW)


def test_examples_instead_of_a_strategy():
    """A list of examples is gone through whole."""
    seen = set()

    class Seen(right.Right):
        def reduce(self, output, params):
            seen.add(output.shape[1])
            return super().reduce(output, params)

    check_output_processor(
        Seen, outputs=[torch.zeros(2, k) for k in range(1, 40)], settings=settings(FEW, max_examples=1), allow=["seen"]
    )
    assert seen >= set(range(1, 40))


def test_incomparable_outputs_need_equal():
    """An object that only equals itself is an error that asks for equal=, with which it passes or fails by it."""
    with pytest.raises(AssertionError, match=r"compare two Opaque .*give equal=, a function of two outputs"):
        check_output_processor(wrong.ReturnsOpaque, outputs=FINITE, settings=FEW)

    def same(left, right):
        return left.value == right.value

    check_output_processor(wrong.ReturnsOpaque, outputs=FINITE, settings=FEW, equal=same, promises=PROMISES[:6])
    with pytest.raises(BrokenPromiseError, match=r"equal\(\) says that the two differ"):
        check_output_processor(wrong.ReturnsOpaque, outputs=FINITE, settings=FEW, equal=lambda one, other: False)


def test_every_output_of_the_processor_is_asked_for():
    """Without params the options are those that the processor knows, and they vary in what it should not mind."""
    seen = set()

    class Seen(SegmentationProcessor):
        def reduce(self, output, params):
            seen.add(params)
            return super().reduce(output, params)

    check_output_processor(Seen, outputs=MAPS, settings=FEW, allow=["seen"])
    assert {params.output for params in seen} == {None, *SegmentationProcessor.outputs}
    assert len({params.overlap for params in seen}) > 1


@pytest.mark.parametrize("params", [OutputParams(output="confidence"), [OutputParams(output="confidence")]])
def test_params_may_be_given(params):
    """Given options are the ones used."""
    check_output_processor(SegmentationProcessor, outputs=MAPS, params=params, settings=FEW)
    with pytest.raises(BrokenPromiseError, match=r"refused every example.*OptionError"):
        check_output_processor(SegmentationProcessor, outputs=MAPS, params=OutputParams(output="x"), settings=FEW)


def test_a_constructor_that_refuses_its_options_is_no_promise():
    """What the author's own factory raises comes out as it is."""
    with pytest.raises(OptionError, match="class_names"):
        check_output_processor(lambda: SegmentationProcessor(class_names=[]), outputs=MAPS, settings=FEW)


def test_an_instance_is_no_factory():
    """An instance instead of its class is an error that says what is wanted."""
    with pytest.raises(TypeError, match=r"make must be a class.*got an instance of Right"):
        check_output_processor(right.Right(), outputs=FINITE, settings=FEW)


def test_the_example_of_the_documentation_works(monkeypatch):
    """The test file in the package's documentation runs as it stands, and its tests pass."""
    flood_masks = types.ModuleType("flood_masks")
    flood_masks.FloodMask = type("FloodMask", (SegmentationProcessor,), {})
    monkeypatch.setitem(sys.modules, "flood_masks", flood_masks)
    _, _, after = vllm_mmout.testing.__doc__.partition("A complete test file::\n")
    code = "\n".join(line for line in after.splitlines() if not line or line.startswith("    "))
    names = {"__name__": "documented"}
    exec(textwrap.dedent(code), names)  # noqa: S102 - it is ours
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_torch_has_its_threads_back():
    """The number of torch's threads is after the check what it was before."""
    before = torch.get_num_threads()
    torch._C.set_num_threads(2)  # vLLM takes the public name away where it has bound the threads
    try:
        check_output_processor(right.Right, outputs=FINITE, settings=FEW)
        assert torch.get_num_threads() == 2
    finally:
        torch._C.set_num_threads(before)


def examples_of_two_runs(**profile):
    """What two checks of one processor drew under a loaded profile."""
    runs = []
    for _ in range(2):
        drawn = []

        class Seen(right.Right):
            def reduce(self, output, params, drawn=drawn):
                drawn.append(str(output.tolist()))  # as text: NaN equals NaN
                return super().reduce(output, params)

        settings.register_profile("of-this-test", **profile)
        before = settings.default
        settings.load_profile("of-this-test")
        try:
            check_output_processor(Seen, outputs=FINITE, allow=["reduce"])
        finally:
            settings.register_profile("before", before)
            settings.load_profile("before")
        runs.append(drawn)
    return runs


def test_the_loaded_profile_is_honoured(monkeypatch):
    """The number of examples is that of the loaded profile; where CI is set, every run draws the same."""
    monkeypatch.setenv("CI", "1")
    one, other = examples_of_two_runs(max_examples=5, database=None)
    assert one == other
    assert len(set(one)) < 60
    monkeypatch.delenv("CI")
    one, other = examples_of_two_runs(max_examples=20, database=None, derandomize=False)
    assert one != other


def test_without_hypothesis_the_error_names_the_remedy():
    """Where hypothesis is not installed, importing says what to install."""
    code = "import sys; sys.modules['hypothesis'] = None\nimport vllm_mmout.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "vllm-mmout[testing]"' in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_check_needs_no_engine():
    """A processor is checked without loading vLLM."""
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "from vllm_mmout.processors import TensorProcessor\n"
        "from vllm_mmout.testing import check_output_processor, tensors\n"
        "check_output_processor(TensorProcessor, outputs=tensors(('n', 'k'), layouts=False))\n"
        "print('works')"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "works\n", f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    assert (done.returncode, done.stderr) == (0, "")
