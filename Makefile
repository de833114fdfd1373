# The two commands of the README, and what development needs. Every target works in an environment of its own.

PYTHON ?= python3
DEMO   := .venv-demo
TEST   := .venv-test
TORCH  ?= torch==2.13.0  # the trainer's formulas and their oracle need it; any build will do

.PHONY: demo test check plugins docs bench clean

demo: $(DEMO)/installed  ## a new environment, the light core, and `rewardkit eval` on real GSM8K generations
	$(DEMO)/bin/rewardkit eval examples/gsm8k/solutions.jsonl -r gsm8k --overwrite

test: $(TEST)/installed  ## a new environment with the test tools, and the whole test suite
	$(TEST)/bin/python -m pytest -n 2 $(ARGS)

check: $(TEST)/installed  ## format, lint, types, floors, generated docs
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/ruff check .
	$(TEST)/bin/mypy
	$(TEST)/bin/lint-imports
	$(TEST)/bin/python docs/generate.py --check

plugins:  ## each plugin in a new environment of its own, and its tests
	plugins/test.sh

docs: $(TEST)/installed  ## write the generated pages again
	$(TEST)/bin/python docs/generate.py

bench: $(TEST)/installed  ## tables of speed and size; never part of the tests
	$(TEST)/bin/python benchmarks/startup.py
	$(TEST)/bin/python benchmarks/engine.py
	$(TEST)/bin/python benchmarks/math_answers.py tests/cases/math_pairs.jsonl
	$(TEST)/bin/python benchmarks/sandbox.py --runs 10000

$(DEMO)/installed: pyproject.toml
	rm -rf $(DEMO)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check .
	touch $@

$(TEST)/installed: pyproject.toml constraints.txt
	rm -rf $(TEST)
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(TEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

clean:  ## remove the environments and caches
	rm -rf $(DEMO) $(TEST) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
