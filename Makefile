# gdrcore: build, try, test, install. `make help` lists the targets.
#
# PREFIX, LIBDIR, INCLUDEDIR, DOCDIR, MANDIR, UNITDIR, SYSUSERSDIR and DESTDIR have their usual meaning. CARGO_TARGET_DIR moves all build output.

CARGO      ?= cargo
PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR     ?= $(PREFIX)/share/doc/gdrcore
MANDIR     ?= $(PREFIX)/share/man
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
DESTDIR    ?=
# What starts programs of another architecture, whose Rust target CARGO_BUILD_TARGET names, such as
# "qemu-aarch64 -L ROOT".
RUN        ?=

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
# A build for another architecture is apart.
OTHER    := $(CARGO_BUILD_TARGET:%=/%)
RELEASE  := $(CARGO_TARGET_DIR)$(OTHER)/release
BIN      := $(CURDIR)/build$(OTHER)/bin
DROPIN   := $(CURDIR)/build$(OTHER)/dropin
MEMPOOL  := $(CURDIR)/build$(OTHER)/mempool
# libgdrcore.a as it is installed.
STATIC   := $(CURDIR)/build$(OTHER)/lib/libgdrcore.a
VERSION  := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOVERSION := 0
# What a program that links libgdrcore.a needs besides.
LIBS_PRIVATE := -lpthread -ldl -lm
# Folders as seen from the files that name them, so that an installed tree may be moved.
SEEN_FROM = $(shell realpath -m --relative-to="$(LIBDIR)/$(1)" "$(2)")
INCLUDE_FROM_CMAKE = $(call SEEN_FROM,cmake/gdrcore,$(INCLUDEDIR))
# Where the installed tools look for the library before the system's folders, seen from theirs; empty: nowhere.
TOOLS_RPATH ?= $$$$ORIGIN/$(shell realpath -m --relative-to="$(PREFIX)/bin" "$(LIBDIR)")
# The C programs that are installed, linked anew for it, and their names there: those of others' programs are taken.
TOOLS := perf/perf:gdrcore-perf perf/pingpong:gdrcore-pingpong perf/devinfo:gdrcore-devinfo perf/ping:gdrcore-ping \
	rdma_copy/rdma_copy_file:rdma_copy_file gpu_direct/server:gdrcore-gpu-server gpu_direct/client:gdrcore-gpu-client
# All programs that are installed.
PROGRAMS := gdrcore gdrcore-run gdrcore-routerd gdrcore-routerctl gdrcore-router-etcd \
	$(foreach t,$(TOOLS),$(word 2,$(subst :, ,$(t))))
# Where the shells look, below share, for what they complete the program @ with.
COMPLETIONS := bash-completion/completions/@ zsh/site-functions/_@ fish/vendor_completions.d/@.fish
DOCS := README.md CHANGELOG.md SECURITY.md LICENSE LICENSE-APACHE LICENSE-MIT $(wildcard docs/*.md docs/*.svg docs/using/*.md)
UNITS := gdrcore-routerd.service gdrcore-routerd.socket
FILL = sed -e 's|@PREFIX_FROM_PC@|$(call SEEN_FROM,pkgconfig,$(PREFIX))|g' \
	-e 's|@INCLUDE_FROM_PC@|$(call SEEN_FROM,pkgconfig,$(INCLUDEDIR))|g' \
	-e 's|@VERSION@|$(VERSION)|g' -e 's|@SOVERSION@|$(SOVERSION)|g' -e 's|@LIBS_PRIVATE@|$(LIBS_PRIVATE)|g' \
	-e 's|@VERSION_MAJOR@|$(word 1,$(subst ., ,$(VERSION)))|g' -e 's|@VERSION_MINOR@|$(word 2,$(subst ., ,$(VERSION)))|g' \
	-e 's|@INCLUDE_FROM_CMAKE@|$(INCLUDE_FROM_CMAKE)|g'

# Under its name at once and whole: another make may do the same, and a program may run the file.
PUT = install -m 755 "$(1)" "$(2).$$$$" && mv -f "$(2).$$$$" "$(2)"

# Whether this cargo is new enough.
FIT = scripts/cargo_version.sh "$(CARGO)"

.PHONY: all lib dropin router cli router-etcd verbs header examples demo demo-router check test compare compare-router compare-vm compare-gpu install uninstall dist test-dist release clean help

all: lib dropin router cli examples ## Build the library, the libibverbs drop-in, the router, gdrcore and the C examples.

lib: ## Build libgdrcore.so and libgdrcore.a.
	@$(FIT)
	$(CARGO) build --release -p gdrcore
	@scripts/static_lib.sh "$(RELEASE)" "$(STATIC)"

dropin: ## Build libibverbs.so.1, libmlx5.so.1 and gdrcore-run, which runs programs of libibverbs and librdmacm on the soft device.
	@$(FIT)
	$(CARGO) build --release -p gdrcore-dropin -p gdrcore-mlx5 -p gdrcore-preload -p gdrcore-run
	@mkdir -p "$(DROPIN)" "$(BIN)"
	@$(call PUT,$(RELEASE)/libgdrcore_dropin.so,$(DROPIN)/libibverbs.so.1)
	@[ -e "$(DROPIN)/libibverbs.so" ] || ln -sf libibverbs.so.1 "$(DROPIN)/libibverbs.so"
	@$(call PUT,$(RELEASE)/libgdrcore_mlx5.so,$(DROPIN)/libmlx5.so.1)
	@[ -e "$(DROPIN)/libmlx5.so" ] || ln -sf libmlx5.so.1 "$(DROPIN)/libmlx5.so"
	@$(call PUT,$(RELEASE)/libgdrcore_preload.so,$(DROPIN)/libgdrcore_preload.so)
	@$(call PUT,$(RELEASE)/gdrcore-run,$(BIN)/gdrcore-run)

router: ## Build gdrcore-routerd, by way of which containers reach each other, gdrcore-routerctl and libmempool.so.
	@$(FIT)
	$(CARGO) build --release -p gdrcore-router -p gdrcore-mempool
	@mkdir -p "$(BIN)" "$(MEMPOOL)"
	@$(call PUT,$(RELEASE)/libmempool.so,$(MEMPOOL)/libmempool.so)
	@$(call PUT,$(RELEASE)/gdrcore-routerd,$(BIN)/gdrcore-routerd)
	@$(call PUT,$(RELEASE)/gdrcore-routerctl,$(BIN)/gdrcore-routerctl)

cli: ## Build gdrcore, one command for all programs, with `gdrcore doctor`.
	@$(FIT)
	$(CARGO) build --release -p gdrcore-cli
	@mkdir -p "$(BIN)"
	@$(call PUT,$(RELEASE)/gdrcore,$(BIN)/gdrcore)

router-etcd: ## Build gdrcore-router-etcd, which brings a router the map of hosts from etcd.
	@$(FIT)
	$(CARGO) build --release -p gdrcore-router-etcd
	@mkdir -p "$(BIN)"
	@$(call PUT,$(RELEASE)/gdrcore-router-etcd,$(BIN)/gdrcore-router-etcd)

verbs: lib ## Build libgdrcore_verbs.so, the module of the verbs device; needs libibverbs' headers.
	@scripts/verbs.sh

header: ## Write include/gdrcore.h anew from ffi/src.
	GDRC_BLESS=1 $(CARGO) test -q -p gdrcore-tests --test header

examples: lib ## Build the C examples.
	$(MAKE) --no-print-directory -C c-examples OUT="$(BIN)" GDRCORE_LIBDIR="$(RELEASE)"

demo: ## Build, then run the main job: router, client and peer, and a 1 GiB file copy, over UDP.
	@CARGO="$(CARGO)" scripts/deps.sh demo
	@$(MAKE) --no-print-directory all
	BIN="$(BIN)" c-examples/demo.sh

demo-router: ## Build, then run containers on two hosts by way of a router each, with perftest and a limit. DEMO_ARGS=--remote: in remote mode.
	@CARGO="$(CARGO)" scripts/deps.sh demo-router
	@$(MAKE) --no-print-directory all
	BIN="$(BIN)" DROPIN="$(DROPIN)" c-examples/demo_router.sh $(DEMO_ARGS)

check: ## Run what each change runs: format, rules of the sources, unit tests but the thorough ones.
	$(CARGO) fmt --all --check
	$(CARGO) test -q -p gdrcore-core -p gdrcore-net -p gdrcore-router -p gdrcore -p gdrcore-strict -p gdrcore-dropin \
		-p gdrcore-ucma --lib --test engine --test golden -- --skip thorough_
	$(CARGO) test -q -p gdrcore-tests --test tidy --test layering --test reasons --test spec_map

test: ## Install (as root) or name what the tests need, then run all of them.
	@CARGO="$(CARGO)" scripts/deps.sh test
	@scripts/test.sh

compare: ## Measure against bare sockets, UCX, libfabric, iperf3, rsync and nc; write bench/RESULTS.md and figures.
	@CARGO="$(CARGO)" scripts/deps.sh compare
	@$(MAKE) --no-print-directory all
	python3 -B bench/compare --bin "$(BIN)" $(COMPARE_ARGS)

compare-router: ## Measure a router beside plain processes, UCX and bare sockets; write bench/RESULTS-ROUTER.md. FREEFLOW_SRC=path adds FreeFlow's.
	@CARGO="$(CARGO)" scripts/deps.sh compare-router
	@$(MAKE) --no-print-directory all
	$(CARGO) build --release -p bench --bin router_load
	python3 -B bench/compare/router.py --bin "$(BIN)" --load "$(RELEASE)/router_load" $(COMPARE_ARGS)

compare-vm: ## Measure beside Linux's rxe in an emulated machine; write bench/RESULTS-VM.md.
	@CARGO="$(CARGO)" scripts/deps.sh test
	@$(MAKE) --no-print-directory all
	BIN="$(BIN)" bench/compare_vm.sh

compare-gpu: all ## Measure GPU memory on this machine's GPU; write bench/RESULTS-GPU.md.
	BIN="$(BIN)" bench/compare_gpu.sh

install: lib dropin router cli examples ## Install library, header, drop-in, router, tools, pages of the manual and others, units, gdrcore.pc and CMake package below $(DESTDIR)$(PREFIX).
	install -d "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/gdrcore" "$(DESTDIR)$(INCLUDEDIR)"
	install -m 755 "$(RELEASE)/libgdrcore.so" "$(DESTDIR)$(LIBDIR)/libgdrcore.so.$(VERSION)"
	ln -sf "libgdrcore.so.$(VERSION)" "$(DESTDIR)$(LIBDIR)/libgdrcore.so.$(SOVERSION)"
	ln -sf "libgdrcore.so.$(SOVERSION)" "$(DESTDIR)$(LIBDIR)/libgdrcore.so"
	if [ -e "$(RELEASE)/libgdrcore_verbs.so" ]; then \
		install -m 755 "$(RELEASE)/libgdrcore_verbs.so" "$(DESTDIR)$(LIBDIR)/libgdrcore_verbs.so"; fi
	install -D -m 755 "$(DROPIN)/libibverbs.so.1" "$(DESTDIR)$(LIBDIR)/gdrcore/libibverbs.so.1"
	ln -sf libibverbs.so.1 "$(DESTDIR)$(LIBDIR)/gdrcore/libibverbs.so"
	install -m 755 "$(DROPIN)/libmlx5.so.1" "$(DESTDIR)$(LIBDIR)/gdrcore/libmlx5.so.1"
	ln -sf libmlx5.so.1 "$(DESTDIR)$(LIBDIR)/gdrcore/libmlx5.so"
	install -m 755 "$(DROPIN)/libgdrcore_preload.so" "$(DESTDIR)$(LIBDIR)/gdrcore/libgdrcore_preload.so"
	install -D -m 755 "$(BIN)/gdrcore-run" "$(DESTDIR)$(PREFIX)/bin/gdrcore-run"
	install -D -m 755 "$(MEMPOOL)/libmempool.so" "$(DESTDIR)$(LIBDIR)/gdrcore/mempool/libmempool.so"
	install -m 755 "$(BIN)/gdrcore" "$(BIN)/gdrcore-routerd" "$(BIN)/gdrcore-routerctl" "$(DESTDIR)$(PREFIX)/bin"
	[ ! -e "$(BIN)/gdrcore-router-etcd" ] || install -m 755 "$(BIN)/gdrcore-router-etcd" "$(DESTDIR)$(PREFIX)/bin"
	install -D -m 644 cli/wireshark/gdrcore.lua "$(DESTDIR)$(PREFIX)/share/gdrcore/gdrcore.lua"
	install -m 644 "$(STATIC)" "$(DESTDIR)$(LIBDIR)/libgdrcore.a"
	install -m 644 include/gdrcore.h "$(DESTDIR)$(INCLUDEDIR)/gdrcore.h"
	$(FILL) ffi/pkg/gdrcore.pc.in >"$(DESTDIR)$(LIBDIR)/pkgconfig/gdrcore.pc"
	$(FILL) ffi/pkg/gdrcoreConfig.cmake.in >"$(DESTDIR)$(LIBDIR)/cmake/gdrcore/gdrcoreConfig.cmake"
	$(FILL) ffi/pkg/gdrcoreConfigVersion.cmake.in >"$(DESTDIR)$(LIBDIR)/cmake/gdrcore/gdrcoreConfigVersion.cmake"
	chmod 644 "$(DESTDIR)$(LIBDIR)/pkgconfig/gdrcore.pc" "$(DESTDIR)$(LIBDIR)/cmake/gdrcore"/*.cmake
	MAKE=make RPATH='$(TOOLS_RPATH)' scripts/install_tools.sh "$(RELEASE)" "$(DESTDIR)$(PREFIX)/bin" $(TOOLS)
	RUN="$(RUN)" LD_LIBRARY_PATH="$(DESTDIR)$(LIBDIR)" scripts/man_pages.sh "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(MANDIR)" "$(VERSION)"
	for p in $(PROGRAMS); do [ ! -e "$(DESTDIR)$(PREFIX)/bin/$$p" ] || for c in $(COMPLETIONS); do \
		f="$(DESTDIR)$(PREFIX)/share/$${c%@*}$$p$${c#*@}"; install -d "$${f%/*}"; \
		$(RUN) "$(BIN)/gdrcore" completion "$${c%%[-/]*}" >"$$f" && chmod 644 "$$f" || exit 1; done || exit 1; done
	for f in $(DOCS); do install -D -m 644 "$$f" "$(DESTDIR)$(DOCDIR)/$$f" || exit 1; done
	install -D -m 644 router/units/router.toml "$(DESTDIR)$(DOCDIR)/examples/router.toml"
	install -D -m 644 router/units/gdrcore.conf "$(DESTDIR)$(SYSUSERSDIR)/gdrcore.conf"
	install -d "$(DESTDIR)$(UNITDIR)"
	for u in $(UNITS); do sed -e 's|/usr/bin/gdrcore|$(PREFIX)/bin/gdrcore|' -e 's|/usr/share/doc/gdrcore|$(DOCDIR)|' \
		"router/units/$$u" >"$(DESTDIR)$(UNITDIR)/$$u" && chmod 644 "$(DESTDIR)$(UNITDIR)/$$u" || exit 1; done

dist: ## Build tarball, wheel, Debian packages and list of parts in an old Debian (as root), into $(CARGO_TARGET_DIR)/dist/out.
	@$(FIT)
	@CARGO="$(CARGO)" scripts/deps.sh dist
	@dist/dist.sh

test-dist: dist ## Build the artifacts twice, compare them, and install each in empty Debian 11, 12 and 13 (as root).
	cp "$(CARGO_TARGET_DIR)/dist/out/SHA256SUMS" "$(CARGO_TARGET_DIR)/dist/first"
	rm -rf "$(CARGO_TARGET_DIR)/dist/old" && dist/dist.sh
	cmp "$(CARGO_TARGET_DIR)/dist/first" "$(CARGO_TARGET_DIR)/dist/out/SHA256SUMS"
	DIST_ALL=1 $(CARGO) test -p gdrcore-tests --test dist --test dist_roots
	scripts/aarch64.sh

release: ## Commit and tag the sources as release VERSION=x.y.z; refuses a tree with changes. Nothing is published.
	@scripts/release.py '$(subst ','\'',$(VERSION))'

uninstall: ## Remove what install put there.
	rm -f "$(DESTDIR)$(LIBDIR)"/libgdrcore.so* "$(DESTDIR)$(LIBDIR)/libgdrcore_verbs.so" "$(DESTDIR)$(LIBDIR)/libgdrcore.a" \
	      "$(DESTDIR)$(LIBDIR)/pkgconfig/gdrcore.pc" "$(DESTDIR)$(INCLUDEDIR)/gdrcore.h"
	rm -f $(foreach p,$(PROGRAMS),"$(DESTDIR)$(PREFIX)/bin/$(p)" \
	      $(foreach c,$(COMPLETIONS),"$(DESTDIR)$(PREFIX)/share/$(subst @,$(p),$(c))")) $(UNITS:%="$(DESTDIR)$(UNITDIR)/%")
	rm -rf "$(DESTDIR)$(PREFIX)/share/gdrcore"
	for page in $$(scripts/man_pages.sh); do rm -f "$(DESTDIR)$(MANDIR)/$$page"; done
	rm -rf "$(DESTDIR)$(LIBDIR)/cmake/gdrcore" "$(DESTDIR)$(LIBDIR)/gdrcore"
	rm -f $(DOCS:%="$(DESTDIR)$(DOCDIR)/%") "$(DESTDIR)$(DOCDIR)/examples/router.toml" "$(DESTDIR)$(SYSUSERSDIR)/gdrcore.conf"
	for d in docs/using docs examples .; do rmdir "$(DESTDIR)$(DOCDIR)/$$d" 2>/dev/null || true; done

clean: ## Remove all build output.
	$(CARGO) clean
	rm -rf build

help: ## Show this.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST)
