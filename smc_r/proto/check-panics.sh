#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Fails if optimised code of the core can panic.
#
# The kernel is built with overflow checks, so that even an addition may end in core::panicking.
# The object of the kernel build does not tell all: small functions are compiled where they are
# called, in another crate. Here all functions of the core are compiled, and none of them may
# reach that module by any chain of calls, nor what else in the library ends in a panic: the names
# of those functions are what the regular expression in the file `panics` matches. What is compiled
# but never called does not count, such as a generic function which was inlined wherever it is used.
set -eu
cd "$(dirname "$0")"

target=${CARGO_TARGET_DIR:-target}/panics
panics=$(grep -v '^#' panics)
mkdir -p "$target"

# panics_in OBJECT CRATE: says which panics the functions of the crate reach, and how many functions
# there are; fails if there is a panic.
panics_in() {
	# Symbols with their readable names, then calls, one pair of symbols a line.
	{
		nm "$1" | awk '{print $NF}' >"$target/symbols"
		nm --demangle=rust "$1" | sed 's/^ *[0-9a-f]* *[A-Za-z] //' |
			paste -d ' ' "$target/symbols" - | sed 's/^/name /'
		objdump -dr --no-show-raw-insn "$1" | awk '
			/^[0-9a-f]+ <.*>:$/ { caller = $2; gsub(/^<|>:$/, "", caller); next }
			/R_[A-Z0-9_]+/ { callee = $NF }
			!/R_[A-Z0-9_]+/ && $2 ~ /^(call|j)/ { callee = $NF; gsub(/^<|>$/, "", callee) }
			callee != "" {
				sub(/[-+]0x[0-9a-f]+$/, "", callee)
				sub(/^\.text\./, "", callee)
				if (callee != caller)
					print "call", caller, callee
				callee = ""
			}'
	} | awk -v crate="^<*$2::" -v panics="$panics" '
		$1 == "name" {
			symbol = $2
			sub(/^name [^ ]+ /, "")
			name[symbol] = $0
			next
		}
		!seen[$2, $3]++ { calls[$2] = calls[$2] " " $3 }
		END {
			for (symbol in name)
				if (name[symbol] ~ crate && symbol in calls) {
					roots++
					queue[++last] = symbol
					from[symbol] = "-"
				}
			for (first = 1; first <= last; first++) {
				count = split(calls[queue[first]], callees, " ")
				for (i = 1; i <= count; i++) {
					callee = callees[i]
					if (name[callee] ~ panics) {
						bad++
						print "check-panics: " name[callee]
						for (symbol = queue[first]; symbol != "-"; symbol = from[symbol])
							print "  from " name[symbol]
					} else if (!(callee in from)) {
						from[callee] = queue[first]
						queue[++last] = callee
					}
				}
			}
			print "functions: " roots + 0
			exit bad != 0
		}'
}

# Functions that can panic have to be found, or nothing that follows says anything.
mkdir -p "$target/control"
"${RUSTC:-rustc}" --edition 2021 --crate-name can_panic --crate-type lib --emit=obj -O -C overflow-checks=on \
	-C codegen-units=1 -C panic=abort -C link-dead-code -o "$target/control/can_panic.o" can_panic.rs
! panics_in "$target/control/can_panic.o" can_panic >"$target/control/said" || {
	echo "check-panics: no function that can panic is found" >&2
	exit 1
}
# One of them has another one do it.
for name in $(sed -n 's/.*\bfn \([a-z]*\).*/\1/p' can_panic.rs | grep -vx called); do
	grep -qx "  from can_panic::$name" "$target/control/said" || {
		echo "check-panics: $name can panic, and is not found" >&2
		exit 1
	}
done

"${CARGO:-cargo}" rustc --quiet --lib --release --target-dir "$target" \
	--config 'profile.release.overflow-checks=true' \
	--config 'profile.release.codegen-units=1' \
	--config 'profile.release.panic="abort"' \
	-- --emit=obj -C link-dead-code

# The newest object is the one just built, or the one that was still up to date.
object=$(find "$target/release/deps" -name 'smc_proto-*.o' -exec ls -t {} + | head -n 1)
[ -n "$object" ] || {
	echo "check-panics: no object in $target" >&2
	exit 1
}

status=0
said=$(panics_in "$object" smc_proto) || status=$?
roots=${said##*functions: }
[ $status -eq 0 ] || printf '%s\n' "${said%functions: *}"
# A core without functions would pass, too.
[ "$roots" -ge 100 ] || {
	echo "check-panics: only $roots functions found"
	status=1
}
[ $status -ne 0 ] || echo "check-panics: none of $roots functions can panic"
exit $status
