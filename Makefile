# Commands of the project. `make setup` builds .venv; PYTHON=… uses that interpreter instead, and adds to it nothing but
# a link to this folder.

PACKAGES := passes codegen autotune backends
TORCH ?= 2.13.0
TRITON ?= 3.7.1
# With a GPU, an installed PyTorch is kept: it fits the driver.
VENV_FLAGS := $(shell command -v nvidia-smi >/dev/null && echo --system-site-packages)
ifdef PYTHON
SETUP := link
override PYTHON := $(abspath $(shell command -v $(PYTHON)))
else
SETUP := .venv/.installed
PYTHON := $(CURDIR)/.venv/bin/python
endif
RUFF := $(PYTHON) -m ruff
PYTEST := $(PYTHON) -m pytest

.PHONY: setup demo test check lint layers .typecheck link types soak gpu bench clean

setup: $(SETUP)

.venv/.installed: pyproject.toml
	test -x .venv/bin/python || python3 -m venv $(VENV_FLAGS) .venv
	.venv/bin/python -c "import torch, triton" 2>/dev/null || .venv/bin/python -m pip install torch==$(TORCH) triton==$(TRITON)
	.venv/bin/python -m pip install -e ".[test,dev,demo]"
	touch $@

link:
	$(PYTHON) -P -c "import optpass.backend" || $(PYTHON) -m pip install --no-deps --no-build-isolation -e .

demo: setup  ## sentence embeddings of a real model, eager against optpass
	$(PYTHON) examples/sentence_embeddings.py

test: setup lint layers  ## everything that a machine without a GPU can show
	$(PYTEST) -m "not soak" tests

check: setup  ## the quick round while working
	$(RUFF) format --check . && $(RUFF) check .
	$(PYTEST) -m "not soak and not triton and not cuda" tests

lint: setup
	$(RUFF) check .

# Import names differ from folders (pyproject.toml, package-dir); tools that read files get a tree that has both.
.typecheck:
	rm -rf .typecheck && mkdir -p .typecheck/optpass
	ln -s $(addprefix $(CURDIR)/,$(wildcard optpass/*) $(PACKAGES)) .typecheck/optpass/

layers: setup .typecheck  ## imports point one way: .importlinter
	rm -rf build/layers && mkdir -p build/layers && cp -RL .typecheck/optpass build/layers/
	cd build/layers && $(PYTHON) -P -c "from importlinter.cli import lint_imports_command as main; main()" \
		--config ../../.importlinter --no-cache

types: setup .typecheck  ## pyright
	$(PYTHON) -m pyright --pythonpath $(PYTHON)

soak: setup  ## long property runs
	$(PYTEST) -m soak tests

gpu: setup  ## on a machine with a GPU
	$(PYTEST) -m "cuda or triton" tests
	$(PYTHON) -m benchmarks overhead --device cuda
	$(PYTHON) -m benchmarks run --device cuda --json build/benchmarks-cuda.json

bench: setup
	$(PYTHON) -m benchmarks overhead
	$(PYTHON) -m benchmarks run --json build/benchmarks.json

clean:
	rm -rf .venv .typecheck build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
