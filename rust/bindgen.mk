# SPDX-License-Identifier: GPL-2.0
# The Rust view of the C headers and helpers of this tree; read by Kbuild.

b := $(obj)/rust/bindings
s := $(src)/rust/bindings
# GCC flags that libclang does not know: the kernel's own list.
bg_skip := $(shell sed -n '/^bindgen_skip_c_flags :=/,/[^\\]$$/p' $(srctree)/rust/Makefile | \
	sed -e 's/^bindgen_skip_c_flags :=//' -e 's/\\$$//')

# A build that is killed must not leave half a file that looks finished.
quiet_cmd_bg = BINDGEN $@
      cmd_bg = $(BINDGEN) $< $(bg_flags) --rust-target 1.85 --use-core --with-derive-default --ctypes-prefix ffi \
	--no-layout-tests --no-debug '.*' --enable-function-attribute-detection -o $@.tmp -- \
	$(filter-out $(bg_skip) $(CC_FLAGS_LTO),$(c_flags)) -w --target=x86_64-linux-gnu -fno-builtin -D__BINDGEN__ -DMODULE; \
	sed -Ei $(bg_sed) $@.tmp; mv $@.tmp $@

# Structs and unions which the kernel's bindings define in full are taken from there.
quiet_cmd_known = KNOWN   $@
      cmd_known = awk '/^pub (struct|union) [A-Za-z0-9_]+ \{/{ n = $$3; getline l; \
	if (l !~ /_unused: \[u8; 0\]|_address: u8/) print n }' $< | sort -u | sed 's/^/--blocklist-type=^/;s/$$/$$/' > $@.tmp; mv $@.tmp $@

$(b)/known_types: $(objtree)/rust/bindings/bindings_generated.rs FORCE
	$(call if_changed,known)

$(b)/bindings_generated.rs: private bg_flags = $(shell grep -Ev '^#|^$$' $(s)/bindgen_parameters) $$(cat $(b)/known_types)
$(b)/bindings_generated.rs: private bg_sed = 's/pub const RUST_CONST_HELPER_([a-zA-Z0-9_]*)/pub const \1/g'
$(b)/bindings_generated.rs: $(s)/bindings_helper.h $(s)/bindgen_parameters $(b)/known_types FORCE
	$(call if_changed_dep,bg)

$(b)/bindings_helpers_generated.rs: private bg_flags = --blocklist-type '.*' --allowlist-var '' --allowlist-function 'rust_helper_.*'
$(b)/bindings_helpers_generated.rs: private bg_sed = \
	's/pub fn rust_helper_([a-zA-Z0-9_]*)/\#[link_name="rust_helper_\1"]\n    pub fn \1/g'
$(b)/bindings_helpers_generated.rs: $(src)/rust/helpers/helpers.c FORCE
	$(call if_changed_dep,bg)

targets += $(addprefix rust/bindings/,known_types bindings_generated.rs bindings_helpers_generated.rs)
