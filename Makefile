# SPDX-License-Identifier: GPL-2.0
# Entry points; `make help` lists them. The work is done by the scripts of tools/env and selftests/vm.

SMC_CACHE ?= $(HOME)/.cache/smc-rs
PREFIX ?= /usr/local
export SMC_CACHE
ifdef KVER
export KVER
endif

.DEFAULT_GOAL := modules
.PHONY: modules tools kernel install uninstall deb test-deb check test test-full test-debug soak fuzz fuzz-calls bench bench-instructions demo shell env update-env clean distclean help

modules: ## build smc_r.ko and smc_diag.ko into build/<kernel release>/ (KVER= chooses the kernel)
	@folder=$$(tools/env/kbuild @) && ls -l "$$folder"/*.ko

tools: ## build the programs into build/tools/
	@tools/env/build-tools

kernel: ## build a kernel of our own to test on (NAME=debug, kasan, kcsan, uml, bench or native); KVER=NAME uses it elsewhere
	@tools/env/build-kernel "$(NAME)"

install: ## install what was built: modules for the running kernel, tools under PREFIX (/usr/local)
	@tools/env/install "$(PREFIX)"

uninstall: ## remove what install put there
	@tools/env/install --remove "$(PREFIX)"

deb: tools ## Debian packages of the tools and of the modules' sources, into build/deb/
	@tools/env/deb

test-deb: tools ## try the packages on a bare Debian: install, build by DKMS, load in a guest, upgrade kernel and packages, remove
	@tools/env/test-deb

check: ## rustfmt, clippy, shellcheck, and rules of the sources
	@tools/env/check

test: ## check, tests of the core and the tools, and the guest suites
	@tools/env/test

test-debug: ## the guest suites on a kernel that looks for mistakes (NAME=kasan, debug, kcsan or uml; builds it first: half an hour)
	@tools/env/test-debug $(NAME)

fuzz: ## feed damaged input to the protocol core, each target for FUZZ_SECONDS (60)
	@tools/env/fuzz $(FUZZ_SECONDS)

test-full: modules tools ## the tests of load at full length: 60 s of iperf3 each way, 1 GiB checked, 12,000 requests
	@tools/env/test-full

fuzz-calls: ## random system calls and netlink requests for MINUTES (60), guided by what they reach (KCOV; on the kernel NAME=kasan, uml or debug)
	@tools/env/fuzz-calls $(or $(MINUTES),60) $(NAME)

soak: modules tools ## ordinary programs between two guests for MINUTES (30) while links, devices and the peer's module come and go
	@SMC_TEST_SCALE=$(or $(MINUTES),30) selftests/vm/run --suite two --only soak

bench: modules tools ## compare TCP, SMC, the C implementation and raw RDMA by time and instructions, in two guests (BENCH= options, see selftests/bench)
	@tools/env/setup peer
	@tools/env/bench $(BENCH)
	@[ -n "$(BENCH)" ] || $(MAKE) --no-print-directory bench-instructions KVER=$(or $(KVER),bench)

bench-instructions: modules tools ## by instructions executed alone, ours against C, which do not depend on the machine's load (BENCH=)
	@tools/env/setup peer
	@tools/env/bench-instructions $(BENCH)

demo: modules tools ## two guests, SMC between them, with ordinary programs
	@tools/env/setup peer
	@selftests/vm/run --suite two --only demo

shell: modules tools ## a shell in a guest; modules in $$VM_MODULES, tools in the PATH
	@selftests/vm/run --shell

env: ## fill the cache: root file system, kernel with Rust metadata, kernel of the C peer, sources of tests
	@tools/env/setup rootfs kernel peer sources

update-env: ## look for newer kernels in the archive
	@tools/env/setup update kernel peer

clean: ## remove build/
	rm -rf build

distclean: clean ## remove build/ and the cache
	rm -rf "$(SMC_CACHE)"

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | sed 's/\$$\$$/$$/g' | expand -t 14
