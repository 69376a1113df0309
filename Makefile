# Two commands do everything, set-up included: `make train` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
AOT := .venv-aot
OLDEST := .venv-oldest
PYTHON := $(VENV)/bin/python
export JAX_PLATFORMS ?= cpu
ARGS ?=

.PHONY: help train test test-aot test-oldest lint types clean
help:
	@echo "make train   set up .venv and train the arithmetic reasoning model (ARGS='--seed 1' is passed on)"
	@echo "make test    set up .venv and run all tests"
	@echo "make test-aot     set up .venv-aot with the compilers of GPUs and TPUs (1 GB) and run all tests of kernels"
	@echo "make test-oldest  the same with the oldest jax that is supported, in .venv-oldest"
	@echo "make lint    ruff        make types   mypy"

train: $(VENV)/.installed-train
	$(PYTHON) train.py --config configs/arithmetic.yaml $(ARGS)

test: $(VENV)/.installed-test
	$(PYTHON) -m pytest -q $(ARGS)

# Triton's interpreter replaces its compiler, so each has a process of its own.
test-aot: $(AOT)/.installed
	TRITON_INTERPRET=1 $(AOT)/bin/python -m pytest -q tests/pallas_kernels --dist load -k gpu_triton $(ARGS)
	$(AOT)/bin/python -m pytest -q --dist load tests/pallas_kernels tests/training/test_pods.py \
		tests/test_readme.py::test_kernels_are_checked_without_a_device $(ARGS)

test-oldest: $(OLDEST)/.installed
	TRITON_INTERPRET=1 $(OLDEST)/bin/python -m pytest -q tests/pallas_kernels --dist load -k gpu_triton $(ARGS)
	$(OLDEST)/bin/python -m pytest -q --dist load -m "not every_shape" tests/pallas_kernels $(ARGS)

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

$(AOT)/.installed: requirements-aot.lock requirements-tools.lock .python-version
	@bash scripts/install.sh $(AOT) requirements-aot.lock
	@touch $@

$(OLDEST)/.installed: requirements-oldest.lock requirements-tools.lock .python-version
	@bash scripts/install.sh $(OLDEST) requirements-oldest.lock
	@touch $@

clean:
	rm -rf $(VENV) $(AOT) $(OLDEST) build *.egg-info
