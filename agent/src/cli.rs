//! The command line, as words. [`crate::app`] makes things of them.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

mod named;

use std::{ffi::OsString, io::Write, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{
    Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint, builder::NonEmptyStringValueParser,
};
use clap_complete::Shell;
use secrecy::SecretString;
use telemetry::SampleRatio;

pub use self::named::Named;
use crate::{Address, connect::ExtraHeader, handlers::prometheus::discovery::Namespaces, upstream::Endpoint};

/// Connects a Kubernetes cluster to kas.
///
/// agentk dials out to kas and serves the requests that come back through the connection: nothing in the cluster has to
/// be reachable from outside. In a pod, the pod's service account is used; elsewhere a kubeconfig, as kubectl would.
#[derive(Debug, Parser)]
#[command(name = "agentk", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    /// Something else than running.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to run with.
    #[command(flatten)]
    pub run: Option<Run>,
}

/// What agentk does besides running.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find out what keeps agentk from working: kas, the cluster, Prometheus
    ///
    /// Takes the flags that agentk runs with. Each step is a line; the exit code is 0 if all went well, and otherwise 1.
    /// It opens a tunnel that announces no service, and leaves it again: a running agentk is not disturbed.
    Check(Box<Run>),
    #[command(flatten)]
    Print(Print),
}

/// What agentk prints about itself.
#[derive(Debug, Subcommand)]
pub enum Print {
    /// Print a shell completion script
    Completion {
        /// For which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// The options of a running agentk.
#[derive(Debug, Args)]
pub struct Run {
    /// Address of kas: ws(s)://host[:port][/prefix]
    ///
    /// It is reached through the HTTP proxy that HTTPS_PROXY (for wss) or HTTP_PROXY (for ws) names, unless NO_PROXY
    /// exempts it.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, env = "AGENTK_KAS_ADDRESS", help_heading = "kas")]
    pub kas_address: Address,
    /// File that contains the agent token; read again at every dial, so that it can be rotated
    ///
    /// The environment variable AGENTK_TOKEN may hold the token instead.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_TOKEN_FILE", help_heading = "kas")]
    pub token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for kas instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_KAS_CA_CERT_FILE", help_heading = "kas")]
    pub kas_ca_cert_file: Option<PathBuf>,
    /// Name in kas's certificate, if not the host of its address
    #[arg(long, value_name = "NAME", help_heading = "kas", value_parser = NonEmptyStringValueParser::new())]
    pub kas_tls_server_name: Option<String>,
    /// Header to add to the requests that open tunnels, for what stands before kas: "Name: value"; may be repeated
    #[arg(long = "kas-header", value_name = "HEADER", help_heading = "kas")]
    pub kas_headers: Vec<ExtraHeader>,
    /// Tunnels to keep open, to different replicas of kas if there are several
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16),
        help_heading = "kas")]
    pub tunnels: u16,

    /// kubeconfig file of the cluster to serve
    ///
    /// Without it: KUBECONFIG, this pod's service account, ~/.kube/config.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of the current one
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,

    /// Prometheus server to serve, too: [NAME=]http(s)://host[:port][/prefix]; may be repeated
    ///
    /// Callers find it at /agents/AGENT/prometheus, or /agents/AGENT/prometheus.NAME. See docs/prometheus.md.
    #[arg(long, value_name = "[NAME=]URL", value_hint = ValueHint::Url, env = "AGENTK_PROMETHEUS_URL", help_heading = "Prometheus")]
    pub prometheus_url: Vec<Named<Endpoint>>,
    /// Certificates (PEM) to trust for this server instead of the system's
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_ca_cert_file: Vec<Named<PathBuf>>,
    /// File that contains a bearer token for this server; read again when it changes
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_token_file: Vec<Named<PathBuf>>,
    /// File that contains user:password for this server; read again when it changes
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_basic_auth_file: Vec<Named<PathBuf>>,
    /// Namespace in which to look for a Prometheus, or '*' for all of them
    ///
    /// Off unless given: whoever may label a Service there answers the queries, and agentk needs the right to list
    /// Services. Prefer --prometheus-url where the address is known. See docs/prometheus.md.
    #[arg(long, value_name = "NAMESPACE", env = "AGENTK_PROMETHEUS_DISCOVERY", help_heading = "Prometheus")]
    pub prometheus_discovery: Option<Namespaces>,

    /// File that says which requests are let into the cluster, whatever kas asks for; read again when it changes
    ///
    /// Without it, agentk passes on everything that it is asked for. See docs/policy.md.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_POLICY_FILE", help_heading = "Cluster")]
    pub policy_file: Option<PathBuf>,

    /// OpenTelemetry collector that traces are sent to, as OTLP over HTTP: http(s)://host[:port][/path]
    ///
    /// Without a path it is /v1/traces. The environment variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
    /// OTEL_EXPORTER_OTLP_ENDPOINT may name it instead; without any of them there are no traces.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, help_heading = "Traces")]
    pub otlp_endpoint: Option<telemetry::Endpoint>,
    /// Certificates (PEM) to trust for the collector instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Traces")]
    pub otlp_ca_cert_file: Option<PathBuf>,
    /// File that contains the collector's token, sent as Authorization: Bearer; read again for each message
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Traces")]
    pub otlp_token_file: Option<PathBuf>,
    /// Part of the requests that is traced, from 0 to 1, where kas has not decided it
    #[arg(long, value_name = "RATIO", default_value_t, help_heading = "Traces")]
    pub otlp_sample_ratio: SampleRatio,

    /// Where to serve /liveness, /readiness and /metrics: [host]:port
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", value_parser = listen_address,
        help_heading = "Process")]
    pub observability_listen_address: SocketAddr,
    /// How long requests in flight may take after SIGTERM
    ///
    /// Keep it below the pod's terminationGracePeriodSeconds, which is 30 s unless set. A second signal ends agentk at
    /// once.
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = proto::duration::parse,
        help_heading = "Process")]
    pub shutdown_grace_period: Duration,
    /// What to log: error, warn, info, debug, trace, or per module like info,agent::session=debug
    #[arg(
        long,
        value_name = "LEVEL",
        env = "AGENTK_LOG_LEVEL",
        default_value = "info",
        help_heading = "Process"
    )]
    pub log_level: String,
    /// How to log
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "AGENTK_LOG_FORMAT", help_heading = "Process")]
    pub log_format: LogFormat,
    /// Name of the pod agentk runs in
    #[arg(long, value_name = "NAME", env = "POD_NAME", help_heading = "Process")]
    pub pod_name: Option<String>,
    /// Namespace of that pod
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", help_heading = "Process")]
    pub pod_namespace: Option<String>,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

/// The environment variable that may hold the token. It is no flag: a command line is seen by everybody.
pub const TOKEN_VARIABLE: &str = "AGENTK_TOKEN";

/// The token from the environment; an empty variable counts as not set.
pub fn token_of(value: Option<OsString>) -> Option<SecretString> {
    let value = value.filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned().into())
}

impl Print {
    /// Writes what was asked for.
    pub fn run(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut command = Cli::command();
        match self {
            Self::Completion { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command, "agentk", &mut script);
                out.write_all(&script)
            }
            Self::Man => clap_mangen::Man::new(command).render(out),
        }
    }
}

/// `:8080` is every IPv4 address, as in `0.0.0.0:8080`.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    let whole = whole.replacen("localhost:", "127.0.0.1:", 1);
    whole.parse().map_err(|_| "write it like 0.0.0.0:8080, [::]:8080 or :8080".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn run(line: &str) -> Run {
        parse(line).unwrap().run.unwrap()
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Without a hint a shell completes nothing, or anything.
    #[test]
    fn every_flag_that_names_a_file_is_completed_with_files() {
        let cli = Cli::command();
        let check = cli.find_subcommand("check").unwrap();
        for argument in cli.get_arguments().chain(check.get_arguments()) {
            let names = argument.get_value_names().unwrap_or_default();
            let expected = match names.first().map(|name| name.as_str()) {
                Some("FILE" | "[NAME=]FILE") => ValueHint::FilePath,
                Some("URL" | "[NAME=]URL") => ValueHint::Url,
                _ => continue,
            };
            assert_eq!(argument.get_value_hint(), expected, "{}", argument.get_id());
        }
    }

    #[test]
    fn the_reference_has_every_flag() {
        let reference = include_str!("../../docs/configuration.md");
        let command = Cli::command();
        for flag in
            command.get_arguments().filter(|flag| !["help", "version"].contains(&flag.get_id().as_str()))
        {
            let name = flag.get_long().unwrap();
            let row = reference.lines().find(|line| line.starts_with(&format!("| `--{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row for --{name}"));
            let default = flag.get_default_values().first().and_then(|value| value.to_str());
            let variable = flag.get_env().and_then(|name| name.to_str());
            for text in [default, variable].into_iter().flatten() {
                assert!(row.contains(&format!("`{text}`")), "--{name} has {text}: {row}");
            }
        }
    }

    #[test]
    fn an_address_is_enough() {
        let run = run("agentk --kas-address wss://kas.example.com --token-file /etc/agentk/token");
        assert_eq!(run.kas_address.to_string(), "wss://kas.example.com");
        assert_eq!((run.tunnels, run.shutdown_grace_period.as_secs()), (2, 25));
        assert_eq!(run.observability_listen_address.to_string(), "0.0.0.0:8080");
        assert!(run.prometheus_url.is_empty() && run.prometheus_discovery.is_none());
    }

    #[test]
    fn bad_values_are_refused_with_the_flag() {
        for (flags, expected) in [
            ("--kas-address https://kas", "write it like wss://kas.example.com"),
            ("--kas-address wss://kas --tunnels 17", "--tunnels"),
            ("--kas-address wss://kas --tunnels 0", "--tunnels"),
            ("--kas-address wss://kas --prometheus-url prometheus:9090", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-url Thanos=http://p", "\"Thanos\" is not a name"),
            ("--kas-address wss://kas --prometheus-url thanos=p:9090", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-ca-cert-file /ca", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-token-file a=/t", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-discovery A_B", "--prometheus-discovery"),
            ("--kas-address wss://kas --observability-listen-address 8080", "write it like 0.0.0.0:8080"),
            ("--kas-address wss://kas --otlp-endpoint collector:4318", "--otlp-endpoint"),
            ("--kas-address wss://kas --otlp-sample-ratio 2", "--otlp-sample-ratio"),
            ("--kas-address wss://kas --shutdown-grace-period 5", "number and a unit"),
            ("--kas-address wss://kas --token secret", "--token"),
            ("--kas-address wss://kas --kas-header X", "write it like \"Name: value\""),
            ("--kas-address wss://kas --kas-header Host:x", "host is set by agentk itself"),
            ("", "--kas-address"),
        ] {
            let error = parse(&format!("agentk {flags}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }

    #[test]
    fn the_port_may_stand_alone() {
        let run = run("agentk --kas-address ws://kas --observability-listen-address :9000");
        assert_eq!(run.observability_listen_address.to_string(), "0.0.0.0:9000");
    }

    #[test]
    fn a_check_takes_the_flags_of_running() {
        let check = parse("agentk check --kas-address wss://kas --prometheus-url http://p").unwrap();
        assert!(matches!(check.command, Some(Command::Check(run)) if run.prometheus_url.len() == 1));
        assert!(parse("agentk check").unwrap_err().to_string().contains("--kas-address"));
    }

    #[test]
    fn a_subcommand_needs_no_address() {
        for (line, word) in [("agentk completion bash", "--kas-address"), ("agentk man", ".TH agentk")] {
            let mut out = Vec::new();
            let Some(Command::Print(print)) = parse(line).unwrap().command else { panic!("{line}") };
            print.run(&mut out).unwrap();
            assert!(String::from_utf8(out).unwrap().contains(word), "{line}");
        }
    }
}
