#!/bin/sh
# Installs bubblewrap and a Python for its sandboxes on a Debian-like machine. As root; does nothing that is done already.
set -eu

if command -v bwrap >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "install-bubblewrap: bubblewrap is missing and only root can install it: sudo $0" >&2
    exit 3
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install-bubblewrap: no apt-get here; install the packages bubblewrap and python3 with this system's own tool" >&2
    exit 3
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap python3; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "install-bubblewrap: apt could not install bubblewrap; the last lines of its output are above" >&2
    exit 3
fi
