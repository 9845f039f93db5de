# The two commands a newcomer needs are `make serve` and `make test`; everything else builds on them.
PYTHON ?= python3
VENV ?= .venv
DATA ?= ./data
LISTEN ?= 127.0.0.1:9000
PREFIX ?= /usr/local
CORES := $(shell nproc)
BIN := $(VENV)/bin

ifneq ($(filter command line environment,$(origin PYTHON)),)
ifneq ($(wildcard $(VENV)/.made),)
ifneq ($(shell $(PYTHON) -V),$(shell $(BIN)/python -V))
$(error $(VENV) has $(shell $(BIN)/python -V), not the one of PYTHON=$(PYTHON): give VENV=.venv-other too, or run "make clean" first)
endif
endif
endif

.PHONY: serve test test-fast test-e2e test-vllm test-rdma-vm lint environments perf client client-needs client-install test-client client-soak clean

# The stamp is written last: an environment that was made halfway is made again.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	touch $@

$(VENV)/.server: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e '.[server]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e '.[server,dev]'
	touch $(VENV)/.server $@

serve: $(VENV)/.server
	$(BIN)/s3verbs serve --data $(DATA) --listen $(LISTEN) --bucket kvcache:relaxed --show-lmcache

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each heavy client lives in a virtual environment of its own under .venvs.
environments: $(VENV)/.dev
	$(BIN)/python tests/e2e/environments.py sdk s3fs nixl nixl-accelerated bench lmcache lmcache-accelerated

test: client lint environments
	$(BIN)/python -m pytest -m 'not vllm and not slow'

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'not e2e and not vllm and not slow'

test-e2e: client environments
	$(BIN)/python -m pytest -m 'e2e and not vllm' tests/e2e

test-vllm: client $(VENV)/.dev
	$(BIN)/python tests/e2e/environments.py vllm vllm-accelerated
	$(BIN)/python -m pytest -m vllm tests/e2e

# A virtual machine with Soft-RoCE devices, the checkout and this virtual environment: docs/rdma-vm.md.
# The guest has no network: what its tests import is made before.
test-rdma-vm: client $(VENV)/.dev
	$(BIN)/python tests/e2e/environments.py nixl-accelerated lmcache-accelerated
	$(BIN)/python -m tests.rdma_vm $(RDMA_VM)

perf: $(VENV)/.dev
	$(BIN)/python -m conformance.perf $(PERF)

CLIENT_PACKAGES := cmake g++ nlohmann-json3-dev libibverbs-dev librdmacm-dev
CLIENT_HEADERS := nlohmann/json.hpp infiniband/verbs.h rdma/rdma_cma.h

client-needs:
	@command -v cmake >/dev/null && \
	  printf '#include <%s>\n' $(CLIENT_HEADERS) | $(CXX) -E -x c++ - >/dev/null 2>&1 || \
	  { echo "the client engine needs a compiler and headers: apt-get install $(CLIENT_PACKAGES)" >&2; exit 1; }

# libcuobjclient.so.1 and its headers, into build/client: docs/cuobjclient.md. An sdist has the sources below src only.
client: client-needs
	cmake -S src/s3verbs/rdma/cuobjclient -B build/client/cmake -DCMAKE_INSTALL_PREFIX=$(CURDIR)/build/client -DCMAKE_INSTALL_LIBDIR=lib
	cmake --build build/client/cmake --parallel $(CORES)
	cmake --install build/client/cmake

build/client/lib/libcuobjclient.so.1:
	$(MAKE) client

# Not into lib itself: there the loader would find it for every process, in place of NVIDIA's of the same name.
client-install: | build/client/lib/libcuobjclient.so.1
	install -d '$(DESTDIR)$(PREFIX)/lib/s3verbs' '$(DESTDIR)$(PREFIX)/include/s3verbs'
	cp -P build/client/lib/libcuobjclient.so* '$(DESTDIR)$(PREFIX)/lib/s3verbs/'
	install -m 644 build/client/include/*.h '$(DESTDIR)$(PREFIX)/include/s3verbs/'

# The client engine alone: its tests as they are and under each sanitizer.
test-client: test-client-plain test-client-address test-client-undefined test-client-thread

test-client-%: client-needs
	cmake -S src/s3verbs/rdma/cuobjclient -B build/client-test/$* -DS3VERBS_TESTS=ON -DS3VERBS_WERROR=ON -DCMAKE_BUILD_TYPE=Debug $(if $(filter-out plain,$*),-DS3VERBS_SANITIZER=$*)
	cmake --build build/client-test/$* --parallel $(CORES)
	ctest --test-dir build/client-test/$* --output-on-failure --parallel $(CORES)

# make client-soak SECONDS=300
client-soak: SECONDS ?= 1800
client-soak: client-needs
	cmake -S src/s3verbs/rdma/cuobjclient -B build/client-soak -DS3VERBS_TESTS=ON
	cmake --build build/client-soak --parallel $(CORES) --target soak
	build/client-soak/tests/soak --seconds $(SECONDS)

clean:
	rm -rf $(VENV) .venvs build dist
