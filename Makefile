# Each target prepares .venv first; when it is prepared already that takes no time and installs nothing.
# Another interpreter than the first suitable one on PATH: make demo PYTHON=/path/to/python3.12

.PHONY: demo test test-engines test-terratorch lint bench bench-peers setup setup-dev setup-terratorch clean distclean
.NOTPARALLEL:

PYTEST_ARGS ?=
BENCH_ARGS ?=

demo: setup  ## the embedded model on the embedded scene: a GeoTIFF and a PNG in demo-output/
	.venv/bin/python -m vllm_mmout.cli demo -o demo-output

test: setup-dev  ## the tests; one of them: make test PYTEST_ARGS="tests/raster -k rotated"
	.venv/bin/python -m pytest $(PYTEST_ARGS)

test-engines: setup-dev  ## the hook's tests against each vLLM release of scripts/engine_sources.py
	.venv/bin/python scripts/test_engines.py $(PYTEST_ARGS)

test-terratorch: setup-terratorch  ## the tests of TerraTorch's models, where TerraTorch is installed
	.venv-terratorch/bin/python -m pytest tests/terratorch $(PYTEST_ARGS)

bench-peers: setup-terratorch  ## TerraTorch's IO Processor plugin and ours, side by side
	.venv-terratorch/bin/python -m benchmarks peers $(BENCH_ARGS)

lint: setup-dev  ## ruff and mypy
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy --strict vllm_mmout

bench: setup-dev  ## the benchmarks: a table and a JSON file
	.venv/bin/python -m benchmarks $(BENCH_ARGS)

setup:
	@bash scripts/setup.sh

setup-dev:
	@bash scripts/setup.sh dev

setup-terratorch: setup-dev
	@bash scripts/setup_terratorch.sh

clean:  ## what tests, builds and the demo leave behind
	rm -rf build dist demo-output *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf examples/own_model/build examples/own_model/*.egg-info examples/own_model/.*_cache
	find vllm_mmout tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## that, and the environment
	rm -rf .venv .venv-terratorch
