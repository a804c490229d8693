#!/usr/bin/env bash
# Brings the programs that tests and the demo start: services.sh redis mariadb [cc]
# They are installed, never started: internal/stack runs private servers as child processes.
set -euo pipefail

say() { printf 'services: %s\n' "$*"; }

PATH=$PATH:/usr/sbin:/sbin # where Debian keeps mariadbd, also for those who are not root

has() {
	case $1 in
	redis) command -v redis-server || command -v valkey-server ;;
	mariadb) command -v mariadbd ;;
	cc) command -v gcc || command -v clang ;; # the race detector needs a C compiler
	esac >/dev/null
}

missing=()
for what in "$@"; do
	has "$what" || missing+=("$what")
done
if [ ${#missing[@]} -eq 0 ]; then
	say "$* are there"
	exit 0
fi
say "missing: ${missing[*]}"

root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

apt_packages() {
	for what in "${missing[@]}"; do
		case $what in
		redis) echo redis-server ;;
		mariadb) echo mariadb-server-core ;; # the server alone: no service, no account, no data directory
		cc) echo gcc libc6-dev ;;
		esac
	done
}

policy=/usr/sbin/policy-rc.d
guarded=

unguard() { [ -z "$guarded" ] || root rm -f "$policy"; }

# guard keeps packages from starting what they install: exit status 101 of this file means "not allowed". One that is
# there already belongs to the machine and stays.
guard() {
	[ ! -e "$policy" ] || return 0
	trap unguard EXIT
	guarded=yes
	root install -m 755 /dev/stdin "$policy" <<<$'#!/bin/sh\nexit 101'
}

install_with_apt() {
	local packages
	mapfile -t packages < <(apt_packages | tr ' ' '\n')
	say "installing ${packages[*]} with apt"
	local get=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=120)
	guard
	if ! root "${get[@]}" install --no-install-recommends "${packages[@]}"; then
		say "reading the package lists anew"
		root "${get[@]}" update
		root "${get[@]}" install --no-install-recommends "${packages[@]}"
	fi
	if [[ " ${missing[*]} " == *" redis "* ]]; then
		# Its package also arranges for a start at the next boot, or has started it under a policy of the machine's own.
		for undo in "systemctl disable --now redis-server" "systemctl disable redis-server" "update-rc.d redis-server disable"; do
			root $undo >/dev/null 2>&1 || true # whichever of them this machine has
		done
	fi
}

install_with_brew() {
	local formulae=()
	for what in "${missing[@]}"; do
		case $what in
		redis | mariadb) formulae+=("$what") ;;
		cc) say "run: xcode-select --install" && exit 1 ;;
		esac
	done
	say "installing ${formulae[*]} with Homebrew"
	brew install "${formulae[@]}"
}

if command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; }; then
	install_with_apt
elif command -v brew >/dev/null; then
	install_with_brew
else
	say "neither apt-get (as root or with sudo) nor brew is here. Install ${missing[*]} yourself, or use containers:"
	cat <<-'EOF'
		  docker compose up -d --wait redis mariadb
		  export TIERLOCK_REDIS_URL=redis://127.0.0.1:6379/0
		  export TIERLOCK_MYSQL_DSN='root:tierlock@tcp(127.0.0.1:3306)/'
	EOF
	exit 1
fi

for what in "${missing[@]}"; do
	has "$what" || { say "$what is still missing" && exit 1; }
done
say "$* are there"
