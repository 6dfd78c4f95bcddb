#!/bin/sh
# Makes sure that tool code has an isolated place to run: a container engine that answers, or bubblewrap, installed if need be.
set -eu
scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
for socket in "${DOCKER_HOST:-unix:///var/run/docker.sock}" "unix:///run/podman/podman.sock"; do
    [ -S "${socket#unix://}" ] && exit 0
done
exec "$scripts/install-bubblewrap.sh"
