#!/bin/sh
# Installs a Docker daemon, what a bridge for it and, where no registry can be reached, a base image are made with, on a Debian-like
# machine.
# As root; does nothing that is done already.
set -eu

missing=
command -v dockerd >/dev/null 2>&1 || missing="$missing docker.io"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
command -v iptables >/dev/null 2>&1 || missing="$missing iptables"
command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "install-docker: missing:$missing; only root can install them: sudo $0" >&2
    exit 3
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install-docker: no apt-get here; install with this system's own tool:$missing" >&2
    exit 3
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# A system-wide daemon is not wanted: start-docker.sh runs a private one.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$log" "$policy"' EXIT
fi
# shellcheck disable=SC2086 # a list of words
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "install-docker: apt could not install:$missing; the last lines of its output are above" >&2
    exit 3
fi
