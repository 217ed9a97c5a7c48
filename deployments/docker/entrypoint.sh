#!/bin/sh
# What an image starts: `worker …` is a Prefect worker, a program's name that program, anything
# else an argument of `ratchet`. A secret NAME may come as NAME_FILE, the path of a file.
set -eu

for name in PGPASSWORD PREFECT_SERVER_API_AUTH_STRING PREFECT_API_AUTH_STRING \
    MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_TRACKING_PASSWORD \
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
    eval "file=\${${name}_FILE:-}"
    [ -n "$file" ] || continue
    if [ ! -r "$file" ] || [ ! -s "$file" ]; then
        echo "${name}_FILE: got '$file', expected a file that is readable and not empty." >&2
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
