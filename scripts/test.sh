#!/bin/sh
# Runs all tests with what they need: bubblewrap, a private Docker daemon (as root), and a database that the tests start themselves.
#   scripts/test.sh BIN [PYTEST ARGUMENTS]        BIN: the folder of the virtual environment's programs
set -eu
bin=${1:?usage: test.sh BIN [PYTEST ARGUMENTS]}
shift
scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
"$scripts/install-bubblewrap.sh"
folder=$(mktemp -d /tmp/agentrl-docker-XXXXXX)
stop() {
    if [ -f "$folder/docker.pid" ]; then
        kill "$(cat "$folder/docker.pid")" 2>/dev/null || true
        waited=0
        while [ -f "$folder/docker.pid" ] && [ "$waited" -lt 50 ]; do
            waited=$((waited + 1))
            sleep 0.2
        done
    fi
    rm -rf "$folder"
}
trap stop EXIT
if [ "$(id -u)" = 0 ]; then
    export AGENTRL_TEST_DOCKER
    AGENTRL_TEST_DOCKER=$("$scripts/start-docker.sh" "$folder" | sed 's/^export DOCKER_HOST=//')
fi
# Two processes: one makes whole runs, the other does all the rest meanwhile.
"$bin/python" -m pytest -n 2 --dist loadgroup "$@"
