#!/bin/sh
# Create all secrets for compose and Kubernetes in a new folder:
#
#   otel-config/secrets.sh FOLDER [NAME …]
#
# NAMEs are host names of the gateway, in addition to those in compose and Kubernetes. The folder
# contains gateway/ (certificate, key, CA, the keys of agents and of trusted senders), passwords.env,
# and ca.key, which signs the next certificate: keep it in a safe place.
set -eu

folder=${1:?"Name the folder: otel-config/secrets.sh FOLDER [NAME …]"}
shift
if [ -e "$folder" ]; then
  echo "secrets: $folder already exists. Remove it for new secrets, or name another folder." >&2
  exit 1
fi
umask 077
mkdir -p "$folder/gateway"
folder=$(cd "$folder" && pwd)
cd "$folder/gateway"

names="DNS:gateway,DNS:gateway.ltrain.svc,DNS:gateway-nodes.ltrain.svc,DNS:localhost"
for name in "$@"; do names="$names,DNS:$name"; done

curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $curve -days 3650 -subj "/CN=ltrain CA" -keyout ../ca.key -out ca.pem 2>/dev/null
openssl req $curve -subj "/CN=gateway" -keyout gateway.key -out request 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$names" > extensions
openssl x509 -req -in request -CA ca.pem -CAkey ../ca.key -CAcreateserial -days 825 \
  -extfile extensions -out gateway.pem 2>/dev/null
rm -f request extensions ca.srl

openssl rand -hex 24 > agent-keys
openssl rand -hex 24 > trusted-keys
{
  for name in CLICKHOUSE_ADMIN_PASSWORD LTRAIN_EXPORTER_PASSWORD LTRAIN_READER_PASSWORD \
    LTRAIN_WRITER_PASSWORD LTRAIN_MIGRATOR_PASSWORD GRAFANA_ADMIN_PASSWORD; do
    echo "$name=$(openssl rand -hex 24)"
  done
  echo "LTRAIN_AGENT_KEY=$(cat agent-keys)"
  echo "LTRAIN_SECRETS=$folder/gateway"
} > ../passwords.env
echo "secrets: $folder"
