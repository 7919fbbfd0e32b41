# kvloom needs Go, make, and python3 with pip. `make demo` and `make test` set themselves up.

# The commit is stamped into the binary. go-nvml leaves its symbols to the driver's library, so a linker that binds at start
# (-z now) would make a binary that dies at start: bind lazily.
export GOFLAGS := $(filter-out -buildvcs=%,$(GOFLAGS)) -buildvcs=auto -ldflags=-extldflags=-Wl,-z,lazy
# go-nvml's own bindings name deprecated functions; a newcomer's first build should not be pages of that.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

TOOLCHAIN := .kvloom/toolchain/.stamp
TESTFLAGS ?= -timeout 14m
FUZZTIME ?= 60s

.DEFAULT_GOAL := help
.PHONY: help toolchain build demo test fuzz check generate quality gpu-bundle clean

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

toolchain: $(TOOLCHAIN) ## Put NVRTC 13.0 and the CUDA headers into .kvloom/toolchain (from PyPI)

$(TOOLCHAIN): scripts/toolchain.py
	python3 scripts/toolchain.py

build: ## Build bin/kvloom and the examples
	go build -o bin/kvloom ./cmd/kvloom
	go build -o bin/decode ./examples/decode
	go build -o bin/evict ./examples/evict

demo: toolchain build ## Run the main job for one model, from spec to result
	bin/kvloom demo

test: toolchain ## Run every test, and count them
	KVLOOM_REQUIRE_NVRTC=1 go run ./internal/testcount $(TESTFLAGS) ./...

fuzz: ## Fuzz the PTX parser and the simulator on random programs, FUZZTIME each
	go test -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME) ./runtime/sim/ptx
	go test -run '^$$' -fuzz '^FuzzProgram$$' -fuzztime $(FUZZTIME) ./runtime/sim

check: build ## gofmt, vet, staticcheck, stale generated files
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	bin/kvloom spec schema --check
	bin/kvloom gen --check

generate: build ## Write the schema and out/ again
	bin/kvloom spec schema specs/kvloom.schema.json
	bin/kvloom gen

# A folder may also hold samples of its files, which are no further texts.
WHOLE = $(filter-out $(DATA)/sample_%,$(wildcard $(DATA)/*_layer[0-9][0-9].safetensors))
QUALITY = $(if $(DATA),six $(sort $(WHOLE)),committed $(sort $(wildcard testdata/quality/*.safetensors)))

quality: build ## Measure the selectors on real keys again and write docs/quality; DATA=DIR for other dumps
	scripts/quality.sh bin/kvloom docs/quality/$(QUALITY)

gpu-bundle: build ## Put all a GPU machine without Go needs under .gpu/
	scripts/gpu-bundle.sh

clean: ## Remove what make made, the toolchain too
	rm -rf bin .gpu .kvloom
