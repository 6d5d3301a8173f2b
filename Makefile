# make demo   install into .venv and run the main job from end to end
# make test   install into .venv and run everything that CI runs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types pytest install clean

demo: $(STAMP)
	$(BIN)/naspipe run

# Types are checked beside the tests; what mypy says comes after them.
test: lint
	@said=$$(mktemp); $(BIN)/mypy > $$said 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory pytest; tested=$$?; \
	wait $$types; typed=$$?; cat $$said; rm -f $$said; exit $$((tested || typed))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/pytest --numprocesses 2 --dist worksteal

install: $(STAMP)

# Anew only when what is installed may have changed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("NASPipe needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,nasbench,nni,text]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
