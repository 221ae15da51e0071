# The trainer: the two environments of `make setup`, with verl and vLLM. docs/containers.md says how
# to run it.
#
#   docker build -f containers/train.Dockerfile -t ltrain-train .
#   docker build -f containers/train.Dockerfile -t ltrain-train:cuda --build-arg DEVICE=cuda .

FROM python:3.11.14-slim-bookworm
ARG DEVICE=cpu
LABEL org.opencontainers.image.title="ltrain train" \
      org.opencontainers.image.description="Trains agents from their traces, with verl and vLLM" \
      org.opencontainers.image.licenses="Apache-2.0"
# vLLM's kernels for CPUs load libnuma; Triton compiles its launchers with gcc when it first runs
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev libnuma1 make \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --home-dir /var/lib/ltrain --no-create-home ltrain \
 && install --directory --owner ltrain --group ltrain --mode 0700 /var/lib/ltrain
WORKDIR /opt/ltrain
COPY . .
RUN PIP_NO_CACHE_DIR=1 make setup DEVICE=${DEVICE}
ENV PATH=/opt/ltrain/.venv/bin:$PATH \
    LTRAIN_HOME=/var/lib/ltrain \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=all \
    PYTHONUNBUFFERED=1
USER 10001:10001
# the recipe, the agent and the reward
WORKDIR /work
VOLUME /var/lib/ltrain
EXPOSE 8000
# The gateway's /health needs no key; it answers 503 while a version is replaced
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=10 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["ltrain"]
CMD ["--help"]
