#!/bin/sh
# Installs Chromium for the tests of the viewer on a Debian-like machine. As root; does nothing that is done already.
set -eu

command -v chromium >/dev/null 2>&1 && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "install-chromium: no Chromium here, and only root can install it with apt-get: its tests are skipped" >&2
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "install-chromium: apt could not install chromium (its last lines are above): its tests are skipped" >&2
fi
