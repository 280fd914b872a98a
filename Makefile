# make lab    set up and open the course in JupyterLab     (ARGS=--no-browser prints the address)
# make test   set up and run every check and test
# Variables: TORCH=auto|cpu|cuda  PYTHON=/path/to/python3.12  ARGS="..."
# Windows, or no make: python scripts/setup.py lab

SEEK = $(shell command -v $(1) 2>/dev/null)
STARTER := $(firstword $(PYTHON) $(foreach name,python3 python3.13 python3.12 python3.11 python,$(call SEEK,$(name))))
RUN = @TORCH="$(TORCH)" PYTHON="$(PYTHON)" "$(or $(STARTER),python3)" scripts/setup.py

.DEFAULT_GOAL := help
.PHONY: help lab install doctor test test-slow check lock sums

help:
	@sed -n 's/^# //p' Makefile

lab install test test-slow check lock:
	$(RUN) $@ $(ARGS)

doctor: install
	@.venv/bin/python -m labkit doctor $(ARGS)

sums:
	@"$(or $(STARTER),python3)" scripts/checksums.py
