#!/bin/sh
# Makes the secrets that compose.yaml mounts, once: random, in compose/secrets/, which git ignores.
# Only you may enter the directory; the files in it are readable, because each container has a uid of its own.
# Remove the directory together with the volumes (docker compose down --volumes) to begin anew.
set -eu

directory=${1:-$(dirname "$0")/secrets}
mkdir -p "$directory"
chmod 700 "$directory"
cd "$directory"
umask 022

random() { od -An -N 18 -t x1 /dev/urandom | tr -d ' \n'; }
make() { [ -s "$1" ] || printf '%s\n' "$2" >"$1"; }

make postgres_password "$(random)"
make database_url "postgresql://shop:$(cat postgres_password)@postgres:5432/shop"
make rabbitmq_password "$(random)"
make rabbitmq.conf "default_user = shop
default_pass = $(cat rabbitmq_password)"
make rabbitmq_url "amqp://shop:$(cat rabbitmq_password)@rabbitmq:5672/"
make grafana_password "$(random)"
make http_token "$(random)"
make operator_token "$(random)"
