# Two commands on a fresh machine: `make demo` trains the default run, `make test` checks everything.
# Both do all their own set-up, in a virtual environment of this folder.

VENV   ?= .venv
PYTHON ?= python3
BIN     = $(VENV)/bin

.PHONY: demo test check format clean

demo: $(VENV)/.installed
	scripts/ensure-sandbox.sh
	$(BIN)/agentrl train --env code_agent

test: $(VENV)/.installed-dev check
	scripts/test.sh $(BIN)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml constraints.txt
	PYTHON=$(PYTHON) scripts/make-venv.sh $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
