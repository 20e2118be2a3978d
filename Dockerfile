# Two images of the same program, which takes the GPU where it finds one:
#
#   docker build -t normd .                            CPU
#   docker build --target cuda -t normd:cuda .         CPU and NVIDIA GPUs, driver R580 or newer
#   docker run -p 8000-8002:8000-8002 normd            serves the demo models
#   docker run --gpus all -p 8000-8002:8000-8002 normd:cuda
#
# -v $PWD/models:/models serves one's own models. The process is not root and writes nothing, so
# --read-only --cap-drop=ALL --security-opt=no-new-privileges --security-opt=seccomp=deploy/seccomp.json
# (that for CPUs) works too. Further flags are appended:
# docker run ... normd --max_request_bytes=1GiB
ARG BASE=debian:bookworm-slim
ARG CUDA_BUILD_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG CUDA_BASE=ubuntu:24.04
ARG VERSION=0.1.0

FROM ${BASE} AS builder
WORKDIR /src
COPY deploy/setup.sh deploy/
RUN ./deploy/setup.sh
COPY . .
ARG VERSION
ARG REVISION=unknown
RUN ./deploy/build_programs.sh /out -DNORMD_CUDA=OFF -DNORMD_REVISION="${REVISION}"
RUN ./deploy/image/make_root.py /out --version="${VERSION}" --revision="${REVISION}"

FROM ${CUDA_BUILD_BASE} AS cuda-builder
ARG CUDA_ARCHITECTURES="75-real;80-real;86-real;89-real;90-real;100-real;120"
WORKDIR /src
COPY deploy/setup.sh deploy/
RUN ./deploy/setup.sh
COPY . .
ARG VERSION
ARG REVISION=unknown
RUN PATH="$PATH:/usr/local/cuda/bin" ./deploy/build_programs.sh /out -DNORMD_REVISION="${REVISION}" \
    -DNORMD_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}"
RUN ./deploy/image/make_root.py /out --list-only --version="${VERSION}" --revision="${REVISION}"

FROM ${CUDA_BASE} AS cuda
ARG VERSION
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="normd" \
      org.opencontainers.image.description="gRPC and HTTP service that normalizes tensors, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=cuda-builder /out /
RUN /usr/share/normd/prepare_image.sh
# What the NVIDIA container runtime brings in, and which drivers it takes; NVIDIA's images set the same.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0"
USER 10001:10001
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["normctl", "health"]
# The last of repeated flags counts, so docker run's arguments override these.
# --insecure: without it, and without --tls_cert and --tls_key, normd listens on loopback alone.
ENTRYPOINT ["normd", "--model_repository=/models", "--http_listen=[::]:8000", \
            "--listen=[::]:8001", "--metrics_listen=[::]:8002", "--insecure"]

# The last target is the one that is built by default. It holds the programs, the libraries that they load
# and nothing else: no shell, no package manager.
FROM scratch AS cpu
ARG VERSION
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="normd" \
      org.opencontainers.image.description="gRPC and HTTP service that normalizes tensors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=builder /out /
ENV PATH=/usr/local/bin
USER 10001:10001
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["normctl", "health"]
ENTRYPOINT ["normd", "--model_repository=/models", "--http_listen=[::]:8000", \
            "--listen=[::]:8001", "--metrics_listen=[::]:8002", "--insecure"]
