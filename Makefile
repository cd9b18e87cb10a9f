.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
UV_VERSION := 0.13.7
COMPILE = $(VENV)/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	--no-annotate --python-version 3.11

.PHONY: help venv servers check format docs test test-fast test-python test-matrix test-faults test-outage release demo example lock clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

venv: $(READY)  ## make .venv with the pinned development environment

$(READY): requirements-dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found: install it, or say 'make PYTHON=/path/to/python3'." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments (it lacks ensurepip): install python3-venv, or say 'make PYTHON=/path/to/python3'." >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

servers: venv  ## install what the tests need to run PostgreSQL, Kafka and RabbitMQ
	@tests/servers/install.sh

check: venv  ## lint, formatting, types, import layers, links and commands of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 0 tests/unit/test_docs.py

format: venv  ## format and fix what can be fixed
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

docs: venv  ## remake the references in docs/: settings, command line, metrics, licences
	$(BIN)/python -m tests.references

test: check servers  ## everything: check, then all tests on real servers
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: venv  ## tests that need no server, in seconds
	$(BIN)/python -m pytest -n 2 -m "not server" $(wildcard tests/unit tests/conformance)

test-python: venv  ## unit and conformance tests, with those servers that are there
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit tests/conformance

test-matrix:  ## test-python on each of Python 3.11, 3.12 and 3.13 that is here
	@scripts/test-matrix

test-faults: venv servers  ## the fault suite at length: make test-faults MINUTES=30 SEED=1
	$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

test-outage: venv servers  ## one outage of each broker, ten minutes long: make test-outage MINUTES=10
	$(BIN)/python -m tests.faults.outage --minutes $(or $(MINUTES),10)

release: venv  ## rehearse a release: build, try what was built, write the notes (ARGS=--tag: and tag it)
	$(BIN)/python scripts/release.py $(ARGS)

demo: venv  ## the whole story with nothing installed
	@$(BIN)/relay demo

example: venv  ## a shop with a service, billing and a saga: examples/orders/README.md
	@$(BIN)/python -m examples.orders

lock: venv  ## remake requirements-dev.txt, and the image's requirements, from pyproject.toml
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) --upgrade --all-extras --group dev pyproject.toml -o requirements-dev.txt
	$(COMPILE) --constraint requirements-dev.txt --extra kafka --extra rabbitmq --extra webhook --extra web \
		pyproject.toml -o compose/requirements/relay.txt
	echo hatchling | $(COMPILE) --constraint requirements-dev.txt - -o compose/requirements/build.txt
	printf 'fastapi\nsqlalchemy\nuvicorn\n' | $(COMPILE) --constraint requirements-dev.txt - -o compose/requirements/example.txt

clean:  ## remove what make made
	rm -rf $(VENV) .venv-3.* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
