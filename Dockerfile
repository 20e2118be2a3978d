# The CPU image: docker build -t normd . && docker run -p 8001:8001 -p 8002:8002 normd
# serves the demo models; -v $PWD/models:/models serves one's own. The process is not root and writes
# nothing, so --read-only --cap-drop=ALL works too. Further flags are appended:
# docker run ... normd --max_request_bytes=1073741824
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS builder
WORKDIR /src
COPY deploy/setup.sh deploy/
RUN ./deploy/setup.sh
COPY . .
RUN cmake --preset release -DNORMD_TESTS=OFF -DNORMD_BENCHMARKS=OFF \
 && cmake --build --preset release --target normd normctl normload
# The packages that own the shared libraries; the names differ between distributions.
RUN mkdir /out && cd build/release/bin && strip normd normctl normload \
 && ldd normd normctl normload | awk '/=> \//{print $3}' | sort -u | xargs -n1 readlink -f \
  | sed 's|.*/|*/|' | xargs dpkg -S | cut -d: -f1 | sort -u >/out/packages \
 && cat /out/packages

FROM ${BASE}
ARG VERSION=unversioned
ARG REVISION=unknown
LABEL org.opencontainers.image.title="normd" \
      org.opencontainers.image.description="gRPC service that normalizes tensors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=builder /out/packages /usr/share/normd/packages
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive xargs -a /usr/share/normd/packages \
    apt-get install -y --no-install-recommends \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt/* \
 && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin normd
COPY --from=builder /src/build/release/bin/normd /src/build/release/bin/normctl \
     /src/build/release/bin/normload /usr/local/bin/
COPY LICENSE /usr/share/doc/normd/
COPY deploy/models /models
USER 10001:10001
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["normctl", "health"]
# Of a flag that is given twice the last counts, so that docker run's arguments add to these.
ENTRYPOINT ["normd", "--model_repository=/models", "--listen=0.0.0.0:8001", \
            "--metrics_listen=0.0.0.0:8002"]
