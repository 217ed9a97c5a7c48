#!/usr/bin/env bash
# Maintenance of a lab's server:
#   lab.sh secrets          create missing passwords and a self-signed certificate
#   lab.sh backup FOLDER    back up databases and files to a new folder while servers run
#   lab.sh restore FOLDER   replace databases and files by a backup; stops the servers
#   lab.sh upgrade          back up, rebuild the images, then upgrade the databases' schemas
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
secrets=${RATCHET_SECRETS:-$here/secrets}
databases=(prefect mlflow mlflow_auth)
volumes=("worker runs /work/runs" "worker home /work/.ratchet" "mlflow mlartifacts /work/mlartifacts")
clients=(proxy worker prefect mlflow)

compose() { docker compose --file "$here/compose.yaml" "$@"; }
postgres() { compose exec -T postgres "$@"; }
inside() { compose run --rm --no-deps -T --entrypoint "$1" "${@:2}"; }
refuse() { echo "$1" >&2; exit 2; }

new_secret() {
    [ -s "$secrets/$1" ] || printf '%s%s' "${2:-}" "$(openssl rand -hex 24)" > "$secrets/$1"
}

make_secrets() {
    : "${RATCHET_DOMAIN:?the domain of the server, as lab.example.org}"
    # Containers read the files as a different user; the folder's mode excludes local users.
    install -d -m 0700 "$secrets"
    for name in postgres prefect_database mlflow_database mlflow_admin mlflow_worker mlflow_session; do
        new_secret "$name"
    done
    new_secret prefect_auth admin:
    [ -s "$secrets/tls_certificate" ] || openssl req -x509 -newkey rsa:3072 -nodes -days 365 \
        -subj "/CN=$RATCHET_DOMAIN" \
        -addext "subjectAltName=DNS:prefect.$RATCHET_DOMAIN,DNS:mlflow.$RATCHET_DOMAIN" \
        -keyout "$secrets/tls_key" -out "$secrets/tls_certificate" 2> /dev/null
    chmod 0444 "$secrets"/*
}

backup() {
    [ ! -e "$1" ] || refuse "$1: already exists; expected the name of a new folder."
    install -d -m 0700 "$1.part"
    for database in "${databases[@]}"; do
        postgres pg_dump --username postgres --format custom "$database" > "$1.part/$database.dump"
    done
    for volume in "${volumes[@]}"; do
        read -r service name path <<< "$volume"
        inside python "$service" - "$path" < "$here/archive_volume.py" > "$1.part/$name.tar"
    done
    (cd "$1.part" && sha256sum -- *.dump *.tar > SHA256SUMS)
    mv "$1.part" "$1"
}

restore() {
    [ -f "$1/SHA256SUMS" ] || refuse "$1: expected a folder written by \`lab.sh backup\`."
    (cd "$1" && sha256sum --check --quiet SHA256SUMS)
    compose stop "${clients[@]}"
    compose up --detach --wait postgres
    for database in "${databases[@]}"; do # the old databases are dropped when all are restored
        postgres dropdb --username postgres --if-exists "${database}_new"
        postgres createdb --username postgres --template template0 --owner "${database%_auth}" \
            "${database}_new"
        postgres pg_restore --username postgres --exit-on-error --single-transaction \
            --dbname "${database}_new" < "$1/$database.dump"
    done
    for database in "${databases[@]}"; do
        postgres psql --username postgres --quiet --set ON_ERROR_STOP=1 \
            --command "drop database if exists $database with (force)" \
            --command "alter database ${database}_new rename to $database" \
            --command "revoke connect on database $database from public"
    done
    for volume in "${volumes[@]}"; do
        read -r service name path <<< "$volume"
        inside find "$service" "$path" -mindepth 1 -delete
        inside tar "$service" --extract --directory "$path" < "$1/$name.tar"
    done
    compose up --detach --wait
}

upgrade() {
    backup "$here/backups/$(date -u +%Y%m%dT%H%M%SZ)"
    compose build --pull
    compose stop "${clients[@]}"
    compose run --rm prefect prefect server database upgrade --yes
    compose run --rm mlflow mlflow db upgrade postgresql://mlflow@postgres:5432/mlflow
    compose up --detach --wait
}

case ${1:-} in
secrets) make_secrets ;;
backup | restore) "$1" "${2:?a folder}" ;;
upgrade) upgrade ;;
*) refuse "got '${1:-}', expected: lab.sh secrets|backup FOLDER|restore FOLDER|upgrade" ;;
esac
