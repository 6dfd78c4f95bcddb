#!/bin/sh
# Starts Podman's Docker-compatible socket below a directory, unless it answers already, and prints "export CONTAINER_HOST=...".
#   eval "$(scripts/start-podman.sh [DIRECTORY])"        stop it with: kill "$(cat DIRECTORY/podman.pid)"
# Installs Podman first where it is missing (Debian, as root).
set -eu

directory=${1:-${TMPDIR:-/tmp}/agentrl-podman}
if [ "$(id -u)" != 0 ]; then
    echo "start-podman: run it as root; a user's own socket is started by: systemctl --user start podman.socket" >&2
    exit 3
fi
mkdir -p "$directory"
directory=$(CDPATH='' cd -- "$directory" && pwd)
socket=$directory/podman.sock
log=$directory/podman.log
if ! command -v podman >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends podman runc; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "start-podman: apt could not install podman; the last lines of its output are above" >&2
        exit 3
    fi
fi

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

if ! answers; then
    # Not systemd's groups: it may not run here. Its own folder: what watches containers leaves files where it stands.
    ( cd "$directory" && exec setsid podman --root "$directory/root" --runroot "$directory/run" --cgroup-manager cgroupfs --runtime "$(command -v runc || command -v crun)" \
        system service --time 0 "unix://$socket" ) >"$log" 2>&1 </dev/null &
    echo $! >"$directory/podman.pid"
    waited=0
    until answers; do
        waited=$((waited + 1))
        if [ "$waited" -gt 150 ]; then
            tail -n 20 "$log" >&2
            echo "start-podman: the socket did not answer; the last lines of $log are above" >&2
            exit 3
        fi
        sleep 0.2
    done
fi
echo "export CONTAINER_HOST=unix://$socket"
