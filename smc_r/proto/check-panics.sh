#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Fails if optimised code of the core can panic.
#
# The kernel is built with overflow checks, so that even an addition may end in core::panicking.
# The object of the kernel build does not tell all: small functions are compiled where they are
# called, in another crate. Here all functions of the core are compiled, and none of them may
# reach that module by any chain of calls. What is compiled but never called does not count, such
# as a generic function which was inlined wherever it is used.
set -eu
cd "$(dirname "$0")"

target=${CARGO_TARGET_DIR:-target}/panics
mkdir -p "$target"

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

# Symbols with their readable names, then calls, one pair of symbols a line.
{
	nm "$object" | awk '{print $NF}' >"$target/symbols"
	nm --demangle=rust "$object" | sed 's/^ *[0-9a-f]* *[A-Za-z] //' |
		paste -d ' ' "$target/symbols" - | sed 's/^/name /'
	objdump -dr --no-show-raw-insn "$object" | awk '
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
} | awk '
	$1 == "name" {
		symbol = $2
		sub(/^name [^ ]+ /, "")
		name[symbol] = $0
		next
	}
	!seen[$2, $3]++ { calls[$2] = calls[$2] " " $3 }
	END {
		for (symbol in name)
			if (name[symbol] ~ /^<*smc_proto::/ && symbol in calls) {
				roots++
				queue[++last] = symbol
				from[symbol] = "-"
			}
		for (first = 1; first <= last; first++) {
			count = split(calls[queue[first]], callees, " ")
			for (i = 1; i <= count; i++) {
				callee = callees[i]
				if (name[callee] ~ /core::panicking|core::option::(unwrap|expect)|core::result::unwrap/) {
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
		# A core without functions would pass, too.
		if (roots < 100) {
			print "check-panics: only " roots + 0 " functions found"
			bad++
		}
		if (!bad)
			print "check-panics: none of " roots " functions can panic"
		exit bad != 0
	}'
