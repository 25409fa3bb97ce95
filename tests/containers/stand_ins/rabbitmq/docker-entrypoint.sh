#!/bin/sh
# What deployments rely on of the official image's entrypoint: never root, and the Erlang virtual
# machine as process 1, so that it gets the container's SIGTERM.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown -R rabbitmq:rabbitmq /var/lib/rabbitmq
    exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$0" "$@"
fi
export RUNNING_UNDER_SYSTEMD=true
exec "$@"
