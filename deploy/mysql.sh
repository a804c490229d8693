#!/usr/bin/env bash
# Brings a real MySQL server for the tests. Debian's stable releases carry MariaDB only, so it comes as a small Debian of
# its own in the user's cache directory, run by chroot: it takes nothing from this system and leaves nothing running.
set -euo pipefail

say() { printf 'mysql: %s\n' "$*"; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tierlock # os.UserCacheDir() of internal/stack
root=$cache/mysql-root
build=$cache/mysql-root.partial
log=$cache/mysql-root.log

# greeting is the first thing that the server of TIERLOCK_MYSQL_DSN says, with its version in it; nothing when it is not
# reached so.
greeting() {
	[[ $TIERLOCK_MYSQL_DSN =~ @tcp\(([^:\)]+):([0-9]+)\) ]] || return 0
	timeout 5 bash -c 'head -c 64 <"/dev/tcp/$0/$1"' "${BASH_REMATCH[@]:1:2}" 2>/dev/null | tr -d '\0' || true
}

# Tests that are to run without need none. Under CI internal/stack lets none run so.
if [ "${TIERLOCK_WITHOUT_MYSQL-}" = 1 ] && [ -z "${CI-}" ]; then
	say "none: TIERLOCK_WITHOUT_MYSQL is 1"
	exit 0
fi
# Nor do they where one is given, which may be a MariaDB: then MySQL is needed besides.
if [ -n "${TIERLOCK_MYSQL_DSN-}" ]; then
	if [[ $(greeting) != *MariaDB* ]]; then
		say "that of TIERLOCK_MYSQL_DSN"
		exit 0
	fi
	say "TIERLOCK_MYSQL_DSN is a MariaDB; MySQL is needed besides"
fi

# Installed on the machine itself? The name says nothing (Debian's mysqld is MariaDB), the version does.
for mysqld in mysqld /usr/sbin/mysqld; do
	if version=$("$mysqld" --no-defaults --version 2>/dev/null) && [[ $version != *MariaDB* ]]; then
		say "$version"
		exit 0
	fi
done

works() { [ -x "$root/usr/sbin/mysqld" ] && chroot "$root" /usr/sbin/mysqld --no-defaults --version 2>/dev/null; }

if [ "$(uname)" != Linux ] || [ "$(id -u)" -ne 0 ]; then
	say "only root on Linux can run one by chroot. Install MySQL 8.4 or later yourself, use a container, or run the tests without:"
	cat <<-'EOF'
		  docker compose up -d --wait mysql
		  export TIERLOCK_MYSQL_DSN='root:tierlock@tcp(127.0.0.1:3307)/'
		or
		  export TIERLOCK_WITHOUT_MYSQL=1
	EOF
	exit 1
fi
if version=$(works); then
	say "$version"
	exit 0
fi

mkdir -p "$cache"
exec 9>"$cache/mysql-root.lock"
flock -n 9 || { say "waiting for another run of this" && flock 9; }
if version=$(works); then
	say "$version"
	exit 0
fi

if ! command -v debootstrap >/dev/null; then
	say "installing debootstrap with apt"
	get=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=120)
	"${get[@]}" install --no-install-recommends debootstrap || {
		"${get[@]}" update
		"${get[@]}" install --no-install-recommends debootstrap
	}
fi

# discard removes what an interrupted run left, also when that was killed with /proc still mounted in it.
discard() {
	awk -v dir="$build/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount
	rm -rf --one-file-system "$build"
}

discard
say "unpacking a small Debian with MySQL in it (a minute, 500 MB): $root"
eval "$(apt-config shell http_proxy Acquire::http::Proxy)" # where apt goes through a proxy, so must this
[ -z "${http_proxy:-}" ] || export http_proxy
if ! debootstrap --variant=minbase --include=mysql-server-core sid "$build" 2>&1 | tee "$log" |
	awk '/^I: (Retrieving|Extracting|Unpacking|Configuring) /{
		if ($2 != phase || ++n % 25 == 0) { print "mysql: " tolower($2) " " $3; fflush() }
		phase = $2
	}'; then
	tail -n 20 "$log"
	say "debootstrap failed; all it said is in $log"
	exit 1
fi
rm -rf "$build"/var/cache/apt/archives/*.deb "$build"/usr/share/{doc,man,locale}
rm -rf "$root" # one that did not work
mv "$build" "$root"
say "$(works)"
