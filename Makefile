# Each target does all that it needs on a fresh machine. CI calls only these.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# people see pip's progress, logs a line per step
INSTALL := quiet=-q; [ ! -t 1 ] || quiet=; $(BIN)/pip install $$quiet
SERVE_VENV := .venv-serve
STAMP := $(VENV)/.installed
SERVE_STAMP := $(SERVE_VENV)/.installed

PYTEST_ARGS ?=
# processes that run tests beside each other, one thread each
JOBS ?= 2

.PHONY: setup setup-serve fix check test test-serve test-wheel demo serve gate docs bench wheel clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints/quantize.txt
	@echo 'setup 1 of 3: $(VENV), with a new pip'
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) $(PIP_ARGS) --upgrade pip
	@echo 'setup 2 of 3: clefq with torch and llm-compressor: 2 GB or more, some minutes'
	@$(INSTALL) $(PIP_ARGS) -c constraints/quantize.txt -e '.[quantize,hub,dev,docs]'
	@echo 'setup 3 of 3: the release code that clefq is tested against'
	@# on its own and without its dependencies: they pull a torchvision that breaks transformers
	@$(INSTALL) $(PIP_ARGS) --no-deps clef-finetune==0.1.0
	@touch $@
	@echo 'clefq is in $(BIN): export PATH="$$PWD/$(BIN):$$PATH"'

fix: setup
	$(BIN)/ruff check --fix clefq tests benchmarks docs tools
	$(BIN)/ruff format clefq tests benchmarks docs tools

check: setup
	$(BIN)/ruff check clefq tests benchmarks docs tools
	$(BIN)/ruff format --check clefq tests benchmarks docs tools
	$(BIN)/mypy

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not serve and not ray' -n $(JOBS) --dist loadfile

setup-serve: $(SERVE_STAMP)

$(SERVE_STAMP): pyproject.toml constraints/serve.txt tools/setup_serve.sh tools/torchvision_cpu_hook.py
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" tools/setup_serve.sh $(SERVE_VENV)
	@touch $@

test-serve: setup setup-serve
	$(SERVE_VENV)/bin/python -m pytest -m serve tests/serving tests/release $(PYTEST_ARGS)

# what .github/workflows/gate.yml does, here
gate: setup
	rm -rf gate-run
	$(BIN)/clefq ci --baseline clefq/nano/weights --scheme nvfp4 \
		--calibration clefq/nano/sets/nano-calibration --eval clefq/nano/sets/nano-eval \
		--out gate-run

docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs site
	@echo site/index.html

# the light ones, a few minutes; docs/benchmarks.md has all of them
bench: setup
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/head.py
	$(BIN)/python benchmarks/host_work.py
	$(BIN)/python benchmarks/load_generator.py
	$(BIN)/python benchmarks/growth.py --scale 0.25
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/bootstrap.py

demo: setup
	$(BIN)/clefq demo --out demo-run

# the bundled miniature on port 8000, on a CPU
serve: setup-serve
	$(SERVE_VENV)/bin/clefq serve nano --eager

wheel: setup
	rm -rf dist
	$(BIN)/pip wheel -qq --no-deps -w dist .

# the wheel in an environment without torch
test-wheel: wheel
	$(BIN)/python tools/test_wheel.py dist/clefq-*.whl .venv-wheel $(PIP_ARGS) \
		-c constraints/quantize.txt

clean:
	rm -rf $(VENV) $(SERVE_VENV) .venv-wheel dist build demo-run gate-run site
