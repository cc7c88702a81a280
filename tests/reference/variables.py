"""The environment variables that Perdure documents, with the library that reads each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """A variable. `default` is Markdown. `reader` is the library that reads it; empty: our own code."""

    name: str
    means: str
    default: str = ""
    reader: str = ""


GROUPS: dict[str, tuple[Variable, ...]] = {
    "Models": (
        Variable(
            "ANTHROPIC_API_KEY",
            "The key of the default provider. Without a key, an address and a model, the rehearsal model answers.",
        ),
        Variable("ANTHROPIC_BASE_URL", "The URL of a server of the Messages API, in place of Anthropic's."),
        Variable(
            "ANTHROPIC_CUSTOM_HEADERS",
            "Headers of every model request, one `name: value` per line.",
            "",
            "anthropic",
        ),
        Variable("PERDURE_MODEL", "The model, which overrides `perdure.toml`; `rehearsal` is the rehearsal model."),
    ),
    "The project and its files": (
        Variable("PERDURE_CONFIG", "The path of the project's `perdure.toml`.", "`perdure.toml` in the current folder"),
        Variable("PERDURE_HOME", "The folder of all state.", "`.perdure` in the project's folder"),
        Variable(
            "PERDURE_WORKSPACE", "The folder of the runs' files, shared by all workers.", "`runs` in `PERDURE_HOME`"
        ),
        Variable(
            "PERDURE_STORE",
            "An object store for transcripts and ledgers: `s3://bucket/prefix`, `gs://…` or `az://…`. Needs the "
            "[extra](#extras) `object-store` ([deploying](../deploy.md#several-machines)).",
            "the runs' files",
        ),
        Variable(
            "PERDURE_PAYLOADS",
            "An object store for payloads that are too large for Temporal's history, the same for every process "
            "([deploying](../deploy.md#several-machines)).",
        ),
    ),
    "Temporal": (
        Variable("PERDURE_TASK_QUEUE", "The task queue of workers and runs.", "`perdure`"),
        Variable(
            "TEMPORAL_ADDRESS",
            "The server's `host:port`. A remote server needs TLS or an API key.",
        ),
        Variable("TEMPORAL_NAMESPACE", "The namespace.", "`default`", "temporalio"),
        Variable("TEMPORAL_API_KEY", "The API key; enables TLS.", "", "temporalio"),
        Variable("TEMPORAL_TLS", "`true` enables TLS."),
        Variable(
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH", "The server's CA certificate, if it is not public.", "", "temporalio"
        ),
        Variable("TEMPORAL_TLS_CLIENT_CERT_PATH", "The client's certificate, for mutual TLS.", "", "temporalio"),
        Variable("TEMPORAL_TLS_CLIENT_KEY_PATH", "The key of that certificate.", "", "temporalio"),
        Variable("TEMPORAL_PROFILE", "The profile of Temporal's configuration file.", "`default`", "temporalio"),
        Variable("TEMPORAL_CONFIG_FILE", "Temporal's configuration file.", "as for the `temporal` CLI", "temporalio"),
        Variable(
            "TEMPORAL_DEPLOYMENT_NAME",
            "The worker's deployment ([upgrading](../upgrading.md#by-worker-versioning)).",
        ),
        Variable("TEMPORAL_WORKER_BUILD_ID", "The worker's build. Set both or neither."),
        Variable(
            "PERDURE_CODEC_KEYS",
            "Keys that encrypt all data in Temporal: `id:key,…`, each 32 bytes in base64. The first one encrypts "
            "([encryption](../architecture.md#secrets-and-encryption)).",
        ),
    ),
    "Answers": (
        Variable(
            "PERDURE_ANSWER_KEY",
            "Keys that sign answers: `id:key,…`, each 32 bytes in base64, or `id:public:key` for a worker that only "
            "verifies. Runs that begin with it accept only [signed answers](../approvals.md#signed-answers).",
        ),
    ),
    "The gateway": (
        Variable(
            "PERDURE_TOKENS",
            "Tokens in place of the token file: `name:sha256:scope+scope,…` ([tokens](../gateway.md#tokens)).",
        ),
    ),
    "Watching": (
        Variable("PERDURE_CRASHTEST_PLAY", "Set by [`perdure crashtest`](../crashtest.md): the name of the play."),
        Variable("PERDURE_METRICS", "A port or `address:port` for Prometheus ([metrics](../operations.md#metrics))."),
        Variable(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "The collector of [spans](../operations.md#spans). Needs the [extra](#extras) `telemetry`.",
        ),
        Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The full URL of the collector, for spans only."),
        Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "The protocol. Only `http/protobuf` is supported.", "`http/protobuf`"),
        Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The protocol, for spans only."),
        Variable("OTEL_TRACES_EXPORTER", "`none` disables spans."),
        Variable(
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
            "`true` puts replies, arguments and results into [spans](../operations.md#spans), redacted.",
        ),
        Variable("OTEL_SDK_DISABLED", "`true` disables spans."),
        Variable("OTEL_SERVICE_NAME", "The service name in spans.", "`perdure`", "opentelemetry-sdk"),
    ),
    "`docker-compose.yml`": (
        Variable("PERDURE_PROJECT", "The folder with `perdure.toml`.", "`./examples/critique`", "docker-compose.yml"),
        Variable("PERDURE_UI_PORT", "The port of the Web UI on this machine.", "`8080`", "docker-compose.yml"),
        Variable(
            "PERDURE_UI_READ_ONLY",
            "`false`: users of the Web UI may also answer, approve and cancel.",
            "`true`",
            "docker-compose.yml",
        ),
        Variable("PERDURE_MEMORY", "The memory limit of each Perdure container.", "`2g`", "docker-compose.yml"),
        Variable(
            "PERDURE_ANSWER_KEY_PUBLIC",
            "The public half of `PERDURE_ANSWER_KEY`, for the workers.",
            reader="docker-compose.yml",
        ),
        Variable("PERDURE_GATEWAY_PORT", "The port of the gateway on this machine.", "`8088`", "docker-compose.yml"),
    ),
}
VARIABLES = {variable.name: variable for group in GROUPS.values() for variable in group}
