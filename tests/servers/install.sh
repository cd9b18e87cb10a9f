#!/bin/sh
# Installs what the tests need to run their servers without Docker: PostgreSQL, PgBouncer, RabbitMQ, Java and the Kafka jars;
# a Chromium for the tests of the operator's pages, Prometheus for those of the alerts. Where a Docker engine answers, only
# these two. Nothing the second time.
# PostgreSQL 18 comes with the Python environment.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kafka="${XDG_CACHE_HOME:-$HOME/.cache}/outbox-relay/kafka-4.1.0"

has_docker() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }
have_postgres() { ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }
have_pgbouncer() { test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null; }
have_kafka() { test -e "$kafka/kafka-tools-4.1.0.jar"; }
have_rabbitmq() { test -x /usr/lib/rabbitmq/bin/rabbitmq-server; }

have_chromium() { command -v chromedriver >/dev/null && command -v chromium >/dev/null; }

packages=""
have_chromium || packages="$packages chromium chromium-driver"
command -v promtool >/dev/null || packages="$packages prometheus"
docker=no
if has_docker; then
    docker=yes
else
    have_postgres || packages="$packages postgresql"
    have_pgbouncer || packages="$packages pgbouncer"
    have_rabbitmq || packages="$packages rabbitmq-server"
    command -v java >/dev/null || packages="$packages default-jre-headless"
    have_kafka || command -v mvn >/dev/null || packages="$packages maven"
fi

if [ -n "$packages" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "Tests on these servers will be skipped; to run them, install:$packages (or start Docker)." >&2
    else
        # A package's own service must not start: the tests run their own, on free ports, and end them.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            printf '#!/bin/sh\nexit 101\n' >$policy
            chmod +x $policy
            trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        fi
        # The distribution's package would otherwise make a cluster that nobody uses.
        mkdir -p /etc/postgresql-common/createcluster.d
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/outbox-relay-tests.conf
        echo "Installing$packages" >&2
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        { apt-get update -q && apt-get install -q -y --no-install-recommends $packages; } >/tmp/outbox-relay-apt.log 2>&1 ||
            { tail -n 20 /tmp/outbox-relay-apt.log >&2; exit 1; }
        rm -f /tmp/outbox-relay-apt.log
    fi
fi

if [ $docker = no ] && ! have_kafka && command -v mvn >/dev/null; then
    echo "Downloading Apache Kafka to $kafka" >&2
    mkdir -p "$(dirname "$kafka")"
    part=$(mktemp -d "$kafka.XXXXXX")
    mvn -q -B -f "$here/kafka/pom.xml" dependency:copy-dependencies -DoutputDirectory="$part" -Dstyle.color=never
    chmod 755 "$part"
    # A directory of an earlier list is completed; a broker may be running from it.
    mv -T "$part" "$kafka" 2>/dev/null || { cp -n "$part"/*.jar "$kafka"; rm -rf "$part"; }
fi
