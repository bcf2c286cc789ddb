# Each target prepares its environment first. If the environment is ready, this takes no time and installs nothing.
# To use another interpreter than the first suitable one on PATH: make demo PYTHON=/path/to/python3.12

.PHONY: help demo check test test-slow test-all test-python test-rasterio test-engines test-release test-patches test-v2 \
	test-terratorch lint bench bench-peers \
	setup setup-dev setup-check setup-release setup-terratorch setup-bench clean distclean
.NOTPARALLEL:

# Keep pytest's compiled tests: rewriting the assertions of all tests takes longer than many of the tests.
unexport PYTHONDONTWRITEBYTECODE

PYTEST_ARGS ?=
BENCH_ARGS ?=
# Two workers of pytest-xdist, which share engines and servers within each worker. For one: PYTEST_ARGS="-n 0 ...".
PYTEST = .venv/bin/python -m pytest -n 2
# Environment without an engine, one for each PYTHON.
CHECK = .venv-check$(if $(PYTHON),-$(notdir $(PYTHON)))
WITHOUT_ENGINE = $(CHECK)/bin/python -m pytest -n 2 -q -m

# Tests of requests and scenes on both kinds of engine, mixed batches, errors, aborts, several processors, IO plugins.
ON_V2 = VLLM_USE_V2_MODEL_RUNNER=1 PYTHONPATH=$(CURDIR)/tests/support/v2
V2_TESTS = $(addprefix tests/engine/test_,runner.py mixed_batches.py mixed_shapes.py isolation_llm.py isolation_async.py \
	picks.py request_errors.py scenes.py scene_ends_async.py handwritten_model.py::test_its_output_processor_decodes) \
	$(addprefix tests/wings/io_plugins/test_,io_plugin.py plugins_as_processors.py) \
	tests/wings/iterative/test_iterative_engine.py

help:  ## show this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target does; do \
		printf '%-16s %s\n' "$$target" "$$does"; done

demo: setup  ## run the embedded model on the embedded scene: a GeoTIFF and a PNG in demo-output/
	.venv/bin/python -m vllm_mmout.cli demo -o demo-output

check: setup-check  ## run ruff and the quick tests that need no engine, in seconds
	$(CHECK)/bin/python -m ruff check --quiet .
	$(CHECK)/bin/python -m ruff format --check --quiet .
	HYPOTHESIS_PROFILE=check $(WITHOUT_ENGINE) "not engine and not slow and not heavy" $(PYTEST_ARGS)

# Write pytest's exit status to a file, because make replaces it with its own.
define run_pytest
	@rm -f .pytest_cache/status
	$(PYTEST) $(1) $(PYTEST_ARGS) || { status=$$?; echo $$status >.pytest_cache/status; exit $$status; }
endef

test: setup-dev  ## run all tests but the slow ones; one test: make test PYTEST_ARGS="tests/geo/raster -k rotated"
	$(call run_pytest,-m "not slow")

test-slow: setup-dev  ## run the slow tests, which `make test` leaves out
	$(call run_pytest,-m slow)

test-all: setup-dev  ## run all tests
	$(call run_pytest)

test-python: setup-check  ## run the tests without an engine on another Python: make test-python PYTHON=python3.13
	$(WITHOUT_ENGINE) "not engine and not slow" $(PYTEST_ARGS)

test-rasterio:  ## run the tests of rasters with rasterio 1.4 and with the newest rasterio for PYTHON
	@bash scripts/test_rasterio.sh $(PYTEST_ARGS)

test-engines: setup-dev  ## run the tests of the hooks on each vLLM release of TESTED_RELEASES
	.venv/bin/python scripts/test_engines.py $(PYTEST_ARGS)

test-release: setup-release  ## run the tests of engines and servers on another vLLM: make test-release VLLM=0.31.0
	.venv-vllm-$(VLLM)/bin/python -m pytest -n 2 -m engine $(PYTEST_ARGS)

test-patches: setup-dev  ## apply each series of patches/ to a copy of vLLM, test it, and revert it
	.venv/bin/python scripts/test_patches.py $(PYTEST_ARGS)

test-v2: $(if $(VLLM),setup-release,setup-dev)  ## run the tests of models on Model Runner V2, without a GPU by Triton's interpreter
	$(ON_V2) $(if $(VLLM),.venv-vllm-$(VLLM)/bin/python -m pytest -n 2,$(PYTEST)) -m "not slow" $(V2_TESTS) $(PYTEST_ARGS)
	@if [ -n "$(VLLM)" ]; then :; elif [ -x .venv-terratorch/bin/python ]; then $(ON_V2) .venv-terratorch/bin/python -m pytest -n 2 \
		$(addprefix tests/wings/terratorch/engine/test_terratorch_,tasks.py compiled.py) $(if $(CI),-m "not slow") \
		$(PYTEST_ARGS); \
	else echo "TerraTorch's models on Model Runner V2: make setup-terratorch first"; fi

test-terratorch: setup-terratorch  ## run the tests of TerraTorch's models, with TerraTorch installed
	.venv-terratorch/bin/python -m pytest -n 2 tests/wings/terratorch/engine $(PYTEST_ARGS)

lint: setup-dev  ## run ruff and mypy
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy --strict vllm_mmout

bench: setup-dev  ## run the benchmarks and write docs/benchmarks.md, its plots and its JSON
	.venv/bin/python -m benchmarks $(BENCH_ARGS)

bench-peers: setup-terratorch  ## compare TerraTorch's IO Processor plugin with ours
	.venv-terratorch/bin/python -m benchmarks peers $(BENCH_ARGS)

setup:
	@bash scripts/setup.sh

setup-dev:
	@bash scripts/setup.sh dev

setup-check:
	@bash scripts/setup.sh check $(CHECK)

setup-release: setup-dev
	@distribution="$$(.venv/bin/python scripts/engine_sources.py $(VLLM))" && \
		bash scripts/setup.sh release $(VLLM) "$$distribution"

setup-terratorch: setup-dev
	@bash scripts/setup_terratorch.sh

setup-bench: setup-dev  ## install GuideLLM in .venv-guidellm, for the benchmark load_tools
	@bash scripts/setup_bench.sh

clean:  ## delete the files that tests, builds and the demo leave behind
	rm -rf build dist demo-output *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf examples/own_model/build examples/own_model/*.egg-info examples/own_model/.*_cache
	find vllm_mmout tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## delete these files and the environments
	rm -rf .venv .venv-check* .venv-terratorch .venv-guidellm .venv-vllm-*
