# `make help` lists the targets. CI calls the same ones.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test soak bench lint fmt services mysql build clean

DEMO ?= -story # flags of the demo, as in: make demo DEMO='-fault redis-kill'
PKG  ?= ./internal/soak ./tier ./idempotency ./... # the longest first
RACE := go test -race -count=1 -parallel 8 # tests wait for servers more than they compute
GOLANGCI := bin/golangci-lint
MODULES := deploy/compose examples idempotency/idemgrpc bench # their dependencies are not the library's

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{ printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: services build ## the shop under a lock, with its verdict, on private servers
	bin/demo $(DEMO)

test: services mysql ## everything, on both engines, with the race detector
	@deploy/services.sh cc
	$(RACE) -timeout 8m $(PKG)
	$(if $(filter ./...,$(PKG)),for m in $(MODULES); do (cd $$m && $(RACE) -timeout 5m ./...); done)

soak: services mysql ## the same tests with full counts, up to an hour
	@deploy/services.sh cc
	TIERLOCK_SOAK=1 $(RACE) -timeout 60m $(PKG)

bench: services mysql ## beside other locks, up to twenty minutes; BENCH='-case hot' runs a part and writes nothing
	go -C bench run . $(or $(BENCH),-report $(CURDIR)/docs)

lint: $(GOLANGCI) ## the linter, a tidy go.mod, and what may import what
	$(GOLANGCI) run
	go mod tidy -diff
	for m in $(MODULES); do (cd $$m && $(CURDIR)/$(GOLANGCI) run && go mod tidy -diff); done
	@! git ls-files --cached --others --exclude-standard '*.go' | xargs grep -L '^// SPDX-License-Identifier: Apache-2.0' | grep . || \
		{ echo 'lint: the files above lack the SPDX line' >&2; exit 1; }
	@if [ -d tier ]; then \
		! go list -deps ./tier | grep -E 'redis/go-redis|go-sql-driver' || { echo 'lint: package tier links a driver' >&2; exit 1; }; \
	fi

fmt: $(GOLANGCI) ## format the code
	$(GOLANGCI) fmt

services: ## install Redis and MariaDB where they are missing; starts nothing
	@deploy/services.sh redis mariadb

mysql: ## bring a real MySQL server into the user's cache directory
	@deploy/mysql.sh

build: ## compile the commands into bin/
	@echo 'building (the first time takes a minute)'
	go build -o bin/ ./cmd/...

clean: ## remove what was built here
	rm -rf bin coverage.out

# Built once from its own go.mod, so that its dependencies are not the library's.
$(GOLANGCI): tools/go.mod tools/go.sum
	@echo 'building golangci-lint (the first time takes minutes)'
	cd tools && go build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
