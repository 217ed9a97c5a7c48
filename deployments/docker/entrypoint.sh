#!/bin/sh
# Entry point of the images: `worker …` starts a Prefect worker, a program's name that program; all
# other arguments are passed to `ratchet`. A secret NAME can be given as the path NAME_FILE.
set -eu

for name in PGPASSWORD PREFECT_SERVER_API_AUTH_STRING PREFECT_API_AUTH_STRING \
    MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_TRACKING_PASSWORD \
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
    eval "file=\${${name}_FILE:-}"
    [ -n "$file" ] || continue
    if [ ! -r "$file" ] || [ ! -s "$file" ]; then
        echo "${name}_FILE: got '$file', expected a readable, non-empty file." >&2
        exit 2
    fi
    export "$name=$(cat "$file")"
    unset "${name}_FILE"
done

case ${1:-} in
worker)
    shift
    exec prefect worker start --install-policy never "$@"
    ;;
ratchet | prefect | mlflow | python | sh) exec "$@" ;;
*) exec ratchet "$@" ;;
esac
