# The image of all components: `make image`, upon the base in image/base.txt
#
# Everything that is installed, the build backend included, is pinned with its hash in the lock files. The base below is a
# tag, by which anybody can try it (`docker build -t topogate:0.2.0 .`); `make image` takes none without a digest.
# It runs as any user, writes nothing but to /tmp, and needs no capability: manifests/ run it so.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python -m pip install --no-cache-dir --require-hashes --no-deps -r requirements-build.lock \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements.lock
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
 && /venv/bin/pip install --no-cache-dir --no-deps --no-index /dist/*.whl \
 && /venv/bin/pip uninstall --yes pip

FROM ${BASE}
LABEL org.opencontainers.image.title="Topogate" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["topogate"]
