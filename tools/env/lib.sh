# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for those who source this
# What the scripts of tools/env share; sourced. The cache holds everything that is downloaded or
# prepared; each entry is made in a temporary folder, stamped with a key and checksums, and renamed.

env_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top_dir=$(cd "$env_dir/../.." && pwd)
SMC_CACHE=${SMC_CACHE:-$HOME/.cache/smc-rs}
suite=trixie

say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }

die() {
	printf 'error: %s\n' "$1" >&2
	shift
	[ $# -eq 0 ] || printf '  next: %s\n' "$@" >&2
	exit 1
}

# Kbuild takes no such folders, nor do mounts of overlays.
case $SMC_CACHE$top_dir in
*[[:space:]:]*)
	die "the names of neither the cache nor the checkout may have blanks or colons: $SMC_CACHE, $top_dir" \
		"set SMC_CACHE to another folder, or move the checkout"
	;;
esac

need_root() {
	[ "$(id -u)" -eq 0 ] && return
	die "$1 needs root: it makes a Debian root file system and runs programs inside it" \
		"run the same command as root or through sudo"
}

need_amd64() {
	[ "$(uname -m)" = x86_64 ] || die "only x86-64 is supported, this machine is $(uname -m)"
}

# need_space MIB DIR: refuses early rather than in the middle of unpacking.
need_space() {
	local have
	mkdir -p "$2" || die "cannot create $2" "set SMC_CACHE to a folder that can be written"
	have=$(df -Pm "$2" | awk 'NR == 2 { print $4 }')
	[ "$have" -ge "$1" ] && return
	die "$2 has $have MiB free, $1 MiB are needed" \
		"free some space, or set SMC_CACHE to a folder on a larger disk"
}

# lock_cache: one process changes the cache at a time; the lock ends with the process.
lock_cache() {
	mkdir -p "$SMC_CACHE" || die "cannot create $SMC_CACHE" "set SMC_CACHE to another folder"
	exec 9>"$SMC_CACHE/lock"
	flock -n 9 && return
	say "waiting for another process that fills $SMC_CACHE"
	flock 9
}

# script_key FILE...: changes whenever one of the files does.
script_key() { cat "$@" | sha256sum | cut -c1-16; }

# stamp DIR KEY FILE...: records the key and the checksums of the files (relative to DIR).
stamp() {
	local dir=$1 key=$2
	shift 2
	(cd "$dir" && { echo "# $key" && sha256sum -- "$@"; } >.stamp.new && mv .stamp.new .stamp)
}

# verify DIR KEY: is the entry complete, made by these scripts, and undamaged?
verify() {
	[ -f "$1/.stamp" ] && [ "$(head -n 1 "$1/.stamp")" = "# $2" ] &&
		(cd "$1" && tail -n +2 .stamp | sha256sum --check --status 2>/dev/null)
}

rootfs_key() { script_key "$env_dir/make-rootfs" "$env_dir/packages"; }
# Trees with other package lists may be in use by another checkout: each has a folder of its own.
rootfs=$SMC_CACHE/rootfs-$(rootfs_key)
kernel_key() { script_key "$env_dir/prepare-kernel" "$env_dir/rust-metadata"; }

# Kernels of our own: see build-kernel.
own_kernels() {
	find "$env_dir/kernels" -name '*.config' ! -name base.config -printf '%f\n' | sed 's/\.config$//' | sort | xargs
}

# own_kernel KVER: the name of our own kernel which KVER means, itself a name or a release; else nothing.
own_kernel() {
	local name=${1##*-smc-}
	[ -z "$name" ] || [ "$name" = base ] || [ ! -f "$env_dir/kernels/$name.config" ] || echo "$name"
}

# own_base: the kernel whose source our own ones are built from: the one which SMC_SOURCE_OF names as KVER does, else the newest;
# nothing where that is not known yet.
own_base() { KVER=${SMC_SOURCE_OF:-} "$env_dir/setup" release; }

# own_release NAME
own_release() {
	local base
	base=$(own_base)
	[ -z "$base" ] || echo "${base%%[-+]*}-smc-$1"
}

# base_key: which package version that is.
base_key() { grep -E ' (vmlinuz|config)$' "$SMC_CACHE/kernels/$(own_base)/.stamp" | sha256sum | cut -c1-16; }

# own_configs NAME: the files with its configuration, later ones on top of earlier ones.
own_configs() {
	local under
	under=$(sed -n 's/^# kernel: on=//p' "$env_dir/kernels/$1.config")
	[ "$1" = base ] || own_configs "${under:-base}"
	echo "$env_dir/kernels/$1.config"
}

own_key() {
	local recipe files
	recipe=$(sed -n 's/^recipe=//p' "$env_dir/build-kernel")
	mapfile -t files < <(own_configs "$1")
	echo "$recipe $(script_key "${files[@]}") $(base_key)"
}

# verify_own NAME full|headers
verify_own() {
	local dir
	dir=$SMC_CACHE/kernels/$(own_release "$1")
	verify "$dir" "$(own_key "$1")" && { [ "$2" = headers ] || grep -q ' vmlinuz$' "$dir/.stamp"; }
}

# debian_mirror: where Debian comes from: SMC_MIRROR, else the archive the host uses, or nothing where it does not say.
# What apt calls Debian is; without the lists of that archive the address has to tell. A disk of the host is of no use.
debian_mirror() {
	if [ -n "${SMC_MIRROR:-}" ]; then
		echo "$SMC_MIRROR"
		return
	fi
	# shellcheck disable=SC2016 # the variables are apt's
	{ apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Identifier: Packages' 2>/dev/null || true; } |
		awk -F'|' '
			$3 ~ /^(cdrom|file|copy):/ { next }
			$1 == "Debian" && $2 == "Debian" || $1 == "" && $3 ~ "/debian/?$" {
				if (++seen[$3] > most) { most = seen[$3]; best = $3 }
			}
			END { if (most) print best }'
}

# ca_bundle: the certificates this host trusts.
ca_bundle() {
	local f
	for f in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
		if [ -n "$f" ] && [ -f "$f" ]; then
			readlink -f "$f"
			return
		fi
	done
}

# native_host: can this machine's own tool chain build for Debian's kernels?
native_host() {
	[ -z "${SMC_CHROOT:-}" ] || return 1
	# shellcheck disable=SC1091
	[ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = "$suite" ] || return 1
	local tool
	for tool in /usr/bin/rustc /usr/bin/bindgen /usr/bin/rustfmt x86_64-linux-gnu-gcc-14 make bc flex bison; do
		command -v "$tool" >/dev/null || return 1
	done
	[ -d /usr/lib/rustlib/src ] || [ -d "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src" ]
}

# The distribution's tools, not those of the user.
system_path=/usr/bin:/bin:/usr/sbin:/sbin

# host_has CMD...: does this machine have the command, and what else it needs: programs and files, named by needs=?
host_has() {
	local it PATH=$system_path:$PATH
	while [ "$1" = env ] || [[ $1 == *=* ]]; do
		shift
	done
	for it in "$1" ${needs:-}; do
		command -v "$it" >/dev/null || [ -f "$it" ] || return 1
	done
}

# in_env CMD...: runs a command where the tool chain is. A machine may be able to build modules and yet lack what else
# is needed: that runs in the root file system then.
in_env() {
	if native_host; then
		if host_has "$@"; then
			PATH=$system_path:$PATH "$@"
			return
		fi
		"$env_dir/make-rootfs" || return
	fi
	"$env_dir/enter" -- "$@"
}
