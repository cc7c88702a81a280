# Perdure as one image: `worker`, `gateway` and every other command.
# The base is named by its full version; add its digest once you have pulled it.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY requirements.runtime.lock ./
RUN python -m venv /opt/perdure \
    && /opt/perdure/bin/pip install --no-cache-dir --require-hashes -r requirements.runtime.lock
COPY . .
RUN /opt/perdure/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/perdure /opt/perdure
ENV PATH=/opt/perdure/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PERDURE_HOME=/data
RUN useradd --uid 10001 --create-home perdure \
    && install --directory --owner=perdure /project \
    && install --directory --owner=perdure --mode=0700 /data /data/runs /data/runs/.watched
USER 10001
# A project's perdure.toml, agents and tools are mounted here, or copied by an image of its own.
WORKDIR /project
VOLUME /data
# One process a container: a worker that serves its metrics (PERDURE_METRICS), or a command that only needs Temporal.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["perdure", "doctor", "--quick"]
ENTRYPOINT ["perdure"]
CMD ["worker"]
