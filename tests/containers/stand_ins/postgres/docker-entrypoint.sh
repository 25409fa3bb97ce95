#!/bin/bash
# What deployments rely on of the official image's entrypoint: POSTGRES_USER, _PASSWORD, _DB,
# _INITDB_ARGS, each also as _FILE, and /docker-entrypoint-initdb.d; only on an empty PGDATA.
set -eu

value() { # value NAME DEFAULT: $NAME, or the content of the file that $NAME_FILE names
    local file="$1_FILE"
    if [ -n "${!file-}" ]; then cat "${!file}"; else printf %s "${!1-$2}"; fi
}

if [ "${1-}" != postgres ] && [ "${1#-}" = "$1" ]; then exec "$@"; fi
if [ "${1#-}" != "$1" ]; then set -- postgres "$@"; fi

if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres:postgres "$PGDATA" /run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    user=$(value POSTGRES_USER postgres)
    password=$(value POSTGRES_PASSWORD '')
    database=$(value POSTGRES_DB "$user")
    if [ -z "$password" ]; then
        echo "POSTGRES_PASSWORD is not set" >&2
        exit 1
    fi
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA" || true
    # shellcheck disable=SC2086 # arguments, to be split
    initdb --username="$user" --pwfile=<(printf '%s\n' "$password") --encoding=UTF8 \
        --locale=C.UTF-8 $(value POSTGRES_INITDB_ARGS '')
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait --options="-c listen_addresses=''" start
    export PGPASSWORD="$password" POSTGRES_USER="$user" POSTGRES_DB="$database"
    [ "$database" = postgres ] || createdb --username="$user" --maintenance-db=postgres "$database"
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
        *.sh)
            # shellcheck source=/dev/null
            if [ -x "$file" ]; then "$file"; else . "$file"; fi
            ;;
        *.sql)
            psql --set=ON_ERROR_STOP=1 --no-psqlrc --username="$user" --dbname="$database" \
                --file="$file"
            ;;
        esac
    done
    unset PGPASSWORD
    pg_ctl --wait --mode=fast stop
fi
exec "$@"
