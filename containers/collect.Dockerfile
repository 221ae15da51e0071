# ltrain[collect]: the collector, SQL, builds and the pages. docs/containers.md says how to run it.
#
#   docker build -f containers/collect.Dockerfile -t ltrain-collect .

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY setup setup
COPY instrument instrument
COPY collector collector
COPY transforms transforms
COPY train train
COPY episodes episodes
COPY ui ui
COPY cli cli
# the versions of the lock are those that the tests run with
RUN python -m venv /opt/ltrain \
 && /opt/ltrain/bin/pip install --no-cache-dir --upgrade pip==26.3 \
 && /opt/ltrain/bin/pip install --no-cache-dir --constraint setup/main.lock ".[collect]"

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="ltrain collect" \
      org.opencontainers.image.description="Collector, SQL and pages for the traces of agents" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --home-dir /var/lib/ltrain --no-create-home ltrain \
 && install --directory --owner ltrain --group ltrain --mode 0700 /var/lib/ltrain
COPY --from=build /opt/ltrain /opt/ltrain
ENV PATH=/opt/ltrain/bin:$PATH \
    LTRAIN_HOME=/var/lib/ltrain \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/ltrain
VOLUME /var/lib/ltrain
# OTLP over gRPC and HTTP, ClickHouse's HTTP interface, `ltrain ui`
EXPOSE 4317 4318 8123 8484
# /health needs no key; it answers 503 while the collector refuses records
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:4318/health', timeout=4)"]
# Without arguments it listens on 127.0.0.1, which `docker run --network host` makes that of the
# machine. `up --host 0.0.0.0` is refused until the store has a key.
ENTRYPOINT ["ltrain"]
CMD ["up"]
