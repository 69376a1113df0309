# Two commands do everything, set-up included: `make train` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PYTHON := $(VENV)/bin/python
export JAX_PLATFORMS ?= cpu
ARGS ?=

.PHONY: help train test lint types notebooks clean
help:
	@echo "make train   set up .venv and train the arithmetic reasoning model (ARGS='--seed 1' is passed on)"
	@echo "make test    set up .venv and run all tests"
	@echo "make lint    ruff        make types   mypy"

train: $(VENV)/.installed-train
	$(PYTHON) train.py --config configs/arithmetic.yaml $(ARGS)

test: $(VENV)/.installed-test
	$(PYTHON) -m pytest -q $(ARGS)

lint: $(VENV)/.installed-test
	$(PYTHON) -m ruff check .

types: $(VENV)/.installed-test
	$(PYTHON) -m mypy

$(VENV)/.installed-train: requirements.lock requirements-tools.lock .python-version
	@bash scripts/install.sh $(VENV) requirements.lock
	@touch $@

$(VENV)/.installed-test: requirements-test.lock requirements-smollm2.lock .python-version
	@bash scripts/install.sh $(VENV) requirements-test.lock requirements-smollm2.lock
	@touch $@ $(VENV)/.installed-train

clean:
	rm -rf $(VENV) build *.egg-info
