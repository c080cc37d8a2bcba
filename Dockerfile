# An image of one Firn broker (or of `firn http`), installed from a wheelhouse: the build asks no package index.
#
#   make image                                     # packs the wheelhouse, then builds with buildah
#   make wheelhouse && docker build -t firn .      # with one wheelhouse in dist/
#
# It runs as user 10001 on a root file system that may be read-only; only /var/lib/firn is written: the broker's logs, and the object
# store if no other one is named. Clients have to be told an address (docs/container.md):
#
#   docker run --rm --read-only -v firn:/var/lib/firn -p 127.0.0.1:9092:9092 -p 127.0.0.1:8080:8080 -e FIRN_ADVERTISE=127.0.0.1:9092 firn

# Any Debian or Ubuntu with Python 3.11 and its venv: a distribution's own, or one of your registry by digest.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG WHEELHOUSE=dist/firn-wheelhouse-*.tar.gz
ARG WHEELHOUSE_SHA256=
WORKDIR /build
COPY ${WHEELHOUSE} wheelhouse.tar.gz
RUN set -eu; \
    python3 -c 'import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' || { \
        echo "BASE has no Python 3.11 with venv. Name an image that has (Debian 12: python3 and python3-venv)." >&2; exit 1; }; \
    if [ -n "${WHEELHOUSE_SHA256}" ]; then \
        echo "${WHEELHOUSE_SHA256}  wheelhouse.tar.gz" >sum; \
        sha256sum --check --strict sum || { echo "The wheelhouse is not the one of WHEELHOUSE_SHA256." >&2; exit 1; }; \
    fi; \
    tar --extract --gzip --no-same-owner --file wheelhouse.tar.gz; \
    python3 -m venv pip; \
    python3 -m venv --without-pip /opt/firn; \
    pip/bin/python -m pip --python /opt/firn/bin/python --no-cache-dir --disable-pip-version-check install \
        --no-index --find-links wheels --require-hashes --requirement requirements.txt; \
    cp VERSION /opt/firn/VERSION; \
    /opt/firn/bin/firn --version

FROM ${BASE}
LABEL org.opencontainers.image.title="Firn" \
      org.opencontainers.image.description="A Kafka-protocol log service whose home is the object store" \
      org.opencontainers.image.version="0.1.1" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN set -eu; \
    groupadd --gid 10001 firn; \
    useradd --no-log-init --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/firn --shell /usr/sbin/nologin firn; \
    install --directory --owner=firn --group=firn --mode=0750 /var/lib/firn
COPY --from=build /opt/firn /opt/firn
ENV PATH=/opt/firn/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    FIRN_DATA_DIR=/var/lib/firn/data \
    FIRN_LISTEN=0.0.0.0:9092 \
    FIRN_HTTP=0.0.0.0:8080 \
    FIRN_BOOTSTRAP=127.0.0.1:9092
VOLUME /var/lib/firn
WORKDIR /var/lib/firn
# By number, so that Kubernetes can tell that it is not root.
USER 10001:10001
EXPOSE 9092 8080
STOPSIGNAL SIGTERM
# A start may read much of the log again. FIRN_BOOTSTRAP and FIRN_HTTP say where the broker and its /readyz are asked.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["sh", "-c", "exec firn wait --quiet --timeout 5 --http $FIRN_HTTP"]
ENTRYPOINT ["firn"]
CMD ["serve"]
