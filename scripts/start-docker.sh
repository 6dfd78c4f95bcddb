#!/bin/sh
# Starts a private Docker daemon below a directory, unless it runs already, and prints "export DOCKER_HOST=...".
#   eval "$(scripts/start-docker.sh [DIRECTORY])"        stop it with: kill "$(cat DIRECTORY/docker.pid)"
# Installs Docker first where it is missing. It has no network of its own: sandboxes have none either. Only where
# AGENTRL_DOCKER_BRIDGE names a bridge of this host with an address, those whose spec opens the network join that one.
set -eu

directory=${1:-${TMPDIR:-/tmp}/agentrl-docker}
scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "start-docker: a daemon needs root" >&2
    exit 3
fi
"$scripts/install-docker.sh"

mkdir -p "$directory"
directory=$(CDPATH='' cd -- "$directory" && pwd)
socket=$directory/docker.sock
log=$directory/docker.log
if [ "${#socket}" -gt 100 ]; then
    echo "start-docker: $socket is too long for a socket; give a directory with a shorter name" >&2
    exit 2
fi

# Not by the docker command, which some releases package apart from the daemon.
answers() {
    python3 - "$socket" <<'END' 2>/dev/null
import socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.settimeout(5)
stream.connect(sys.argv[1])
stream.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
sys.exit(b" 200 " not in stream.recv(64))
END
}

# A pid file outlives a killed daemon, and its number may belong to another process by now.
forget_unless_running() {
    [ -f "$1" ] || return 0
    name=$(cat "/proc/$(cat "$1")/comm" 2>/dev/null || true)
    state=$(cut -d ' ' -f 3 "/proc/$(cat "$1")/stat" 2>/dev/null || true)
    if [ "$name" != "$2" ] || [ "$state" = Z ]; then rm -f "$1"; fi
}

if ! answers; then
    forget_unless_running "$directory/docker.pid" dockerd
    forget_unless_running "$directory/exec/containerd/containerd.pid" containerd
    if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && ! grep -q ' /sys/fs/cgroup/[a-z,]* cgroup ' /proc/mounts; then
        echo "start-docker: no control groups are mounted below /sys/fs/cgroup; a Docker daemon can't run here" >&2
        exit 3
    fi
    ( cd "$directory" && exec setsid dockerd --data-root "$directory/data" --exec-root "$directory/exec" --host "unix://$socket" \
        --pidfile "$directory/docker.pid" --bridge "${AGENTRL_DOCKER_BRIDGE:-none}" --iptables=false --live-restore ) >"$log" 2>&1 </dev/null &
    started=$!
    waited=0
    until answers; do
        waited=$((waited + 1))
        if [ "$waited" -gt 150 ] || ! kill -0 "$started" 2>/dev/null; then
            tail -n 20 "$log" >&2
            echo "start-docker: the daemon did not answer; the last lines of $log are above" >&2
            exit 3
        fi
        sleep 0.2
    done
fi
echo "export DOCKER_HOST=unix://$socket"
