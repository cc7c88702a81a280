"""The variables of the environment that mean something to Perdure, and who reads each.

Those of other libraries are theirs to explain: named here are the ones that its pages speak of.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """`default` in Markdown. `reader` is the library that reads it; empty: our own code does."""

    name: str
    means: str
    default: str = ""
    reader: str = ""


GROUPS: dict[str, tuple[Variable, ...]] = {
    "Models": (
        Variable(
            "ANTHROPIC_API_KEY",
            "The key of the default provider. With neither key nor address nor a named model the rehearsal answers.",
        ),
        Variable("ANTHROPIC_BASE_URL", "The address of any server of the Messages API, in place of Anthropic's."),
        Variable(
            "ANTHROPIC_CUSTOM_HEADERS",
            "Sent with every request to a model: `name: value`, one a line.",
            "",
            "anthropic",
        ),
        Variable("PERDURE_MODEL", "The model's name, before what `perdure.toml` says; `rehearsal` for the stand-in."),
    ),
    "The project and its files": (
        Variable("PERDURE_CONFIG", "The `perdure.toml` of the project.", "the one of the current folder"),
        Variable("PERDURE_HOME", "The folder of all state.", "`.perdure`, beside `perdure.toml`"),
        Variable(
            "PERDURE_WORKSPACE", "The folder of the runs' files; shared by all workers.", "`runs`, in `PERDURE_HOME`"
        ),
        Variable(
            "PERDURE_STORE",
            "An object store for what runs must not lose: `s3://bucket/prefix`, `gs://…`, `az://…`, with the "
            "[extra](#extras) `object-store` ([deploying](deploy.md#several-machines)).",
            "the runs' files",
        ),
        Variable(
            "PERDURE_PAYLOADS",
            "An object store for payloads that are too large for Temporal's history, for every process alike "
            "([deploying](deploy.md#several-machines)).",
        ),
    ),
    "Temporal": (
        Variable("PERDURE_TASK_QUEUE", "The task queue of workers and runs.", "`perdure`"),
        Variable(
            "TEMPORAL_ADDRESS",
            "`host:port` of the server. Beyond this machine it needs TLS or an API key.",
            "",
            "temporalio",
        ),
        Variable("TEMPORAL_NAMESPACE", "The namespace.", "`default`", "temporalio"),
        Variable("TEMPORAL_API_KEY", "The API key; it turns TLS on.", "", "temporalio"),
        Variable("TEMPORAL_TLS", "`true` turns TLS on.", "", "temporalio"),
        Variable(
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH", "Whom to trust, where that is not a public authority.", "", "temporalio"
        ),
        Variable("TEMPORAL_TLS_CLIENT_CERT_PATH", "The certificate of this client, for mutual TLS.", "", "temporalio"),
        Variable("TEMPORAL_TLS_CLIENT_KEY_PATH", "And its key.", "", "temporalio"),
        Variable("TEMPORAL_PROFILE", "The profile of Temporal's configuration file.", "`default`", "temporalio"),
        Variable("TEMPORAL_CONFIG_FILE", "That file.", "where the `temporal` CLI keeps it", "temporalio"),
        Variable(
            "TEMPORAL_DEPLOYMENT_NAME",
            "Which deployment a worker belongs to ([upgrading](upgrading.md#by-worker-versioning)).",
        ),
        Variable("TEMPORAL_WORKER_BUILD_ID", "And which build of it it is; both or none."),
        Variable(
            "PERDURE_CODEC_KEYS",
            "Encrypts what Temporal keeps: `id:key,…`, each key 32 bytes in base64; the first encrypts "
            "([how](architecture.md#secrets-and-encryption)).",
        ),
    ),
    "Answers": (
        Variable(
            "PERDURE_ANSWER_KEY",
            "Signs answers, and runs that begin with it take no others: `id:key,…`, each key 32 bytes in base64, "
            "or `id:public:key` for a worker that only checks ([how](approvals.md#signed-answers)).",
        ),
    ),
    "The gateway": (
        Variable(
            "PERDURE_TOKENS",
            "Tokens for where there is no file: `name:sha256:scope+scope,…` ([tokens](gateway.md#tokens)).",
        ),
    ),
    "Watching": (
        Variable("PERDURE_METRICS", "A port, or `address:port`, for Prometheus ([metrics](operations.md#metrics))."),
        Variable(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "The collector of [spans](operations.md#spans), with the [extra](#extras) `telemetry`.",
        ),
        Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same, for spans alone: the whole address."),
        Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "`http/protobuf`; no other is spoken.", "`http/protobuf`"),
        Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The same, for spans alone."),
        Variable("OTEL_TRACES_EXPORTER", "`none` turns spans off."),
        Variable("OTEL_SDK_DISABLED", "`true` turns them off, too."),
        Variable("OTEL_SERVICE_NAME", "The name of the service in spans.", "`perdure`", "opentelemetry-sdk"),
    ),
    "`docker-compose.yml`": (
        Variable("PERDURE_PROJECT", "The folder with `perdure.toml`.", "`./examples/critique`", "docker-compose.yml"),
        Variable("PERDURE_UI_PORT", "The port of the Web UI on this machine.", "`8080`", "docker-compose.yml"),
        Variable(
            "PERDURE_UI_READ_ONLY",
            "`false`: whoever opens the Web UI may also answer, approve and cancel.",
            "`true`",
            "docker-compose.yml",
        ),
        Variable("PERDURE_MEMORY", "What a container of ours may take.", "`2g`", "docker-compose.yml"),
        Variable(
            "PERDURE_ANSWER_KEY_PUBLIC",
            "The public half of `PERDURE_ANSWER_KEY`, for the workers.",
            reader="docker-compose.yml",
        ),
        Variable("PERDURE_GATEWAY_PORT", "The port of the gateway on this machine.", "`8088`", "docker-compose.yml"),
    ),
}
VARIABLES = {each.name: each for group in GROUPS.values() for each in group}
