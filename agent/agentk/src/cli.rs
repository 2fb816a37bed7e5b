//! The command line of agentk. [`crate::App`] is built from it.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

mod admission;
mod named_value;

use std::{ffi::OsString, io::Write, net::SocketAddr, path::PathBuf, time::Duration};

use agentk_core::{
    KasAddress,
    connect::{KasHeader, ProtocolChoice},
    feature::FeatureOptions,
    listen::listen_address,
    services::prometheus::discovery::Namespaces,
    upstream::ServerUrl,
};
use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueHint,
    builder::NonEmptyStringValueParser,
};
use clap_complete::Shell;
use process::logs::LogFormat;
use proto::agent_configuration::{InvalidScope, Scope};
use secrecy::SecretString;
use telemetry::SampleRatio;

pub use self::{
    admission::{AdmissionOptions, JudgeOptions, PolicyCommand, PolicyForm},
    named_value::NamedValue,
};
use crate::{features::FeatureFlags, log_filter::log_format};

/// Connects a Kubernetes cluster to kas.
///
/// agentk opens connections to kas and serves the requests that arrive through them: nothing in the cluster has to be
/// reachable from outside. In a pod, agentk uses the pod's service account, and elsewhere the kubeconfig of kubectl.
#[derive(Debug, Parser)]
#[command(name = "agentk", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    /// A command, instead of running agentk.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The options of running agentk.
    #[command(flatten)]
    pub run: Option<RunOptions>,
}

impl Cli {
    /// Parses the command line, of which the first word is the name of the program.
    ///
    /// With a command, the options of running are `None`. Variables such as `POD_NAME` set some of them in every pod, and clap
    /// would then demand `--kas-address` for them, too.
    ///
    /// # Errors
    /// The error for the terminal, which includes help and version.
    pub fn from_arguments<T>(arguments: impl IntoIterator<Item = T>) -> Result<Self, clap::Error>
    where
        T: Into<OsString> + Clone,
    {
        let mut definition = Self::command();
        let mut matches = definition.try_get_matches_from_mut(arguments)?;
        let cli = match matches.subcommand_name() {
            Some(_) => Command::from_arg_matches_mut(&mut matches)
                .map(|command| Self { command: Some(command), run: None }),
            // clap takes optional options with further groups of options for absent ones.
            None => RunOptions::from_arg_matches_mut(&mut matches)
                .map(|options| Self { command: None, run: Some(options) }),
        };
        cli.map_err(|error| error.format(&mut definition))
    }
}

/// The commands other than running agentk.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the connections to kas, to the cluster and to Prometheus
    ///
    /// Takes the flags that agentk runs with. Each step is a line; the exit code is 0 if all steps succeed, and otherwise 1.
    /// It opens a tunnel without services and closes it, which does not disturb a running agentk.
    Check(Box<RunOptions>),
    /// Run agentk, as without a command
    Serve(Box<RunOptions>),
    /// Answer the API server's questions about writes of agentk, by the policy file
    ///
    /// A validating admission webhook: whoever has stolen the credential of agentk cannot write more than the policy allows. It needs no
    /// kas, and no rights in the cluster but to list namespaces, if the policy selects them by labels. See docs/policy.md.
    Admission(Box<AdmissionOptions>),
    /// Commands about policy files
    #[command(subcommand)]
    Policy(PolicyCommand),
    #[command(flatten)]
    Print(PrintCommand),
}

/// The commands that print a text.
#[derive(Debug, Subcommand)]
pub enum PrintCommand {
    /// Print a shell completion script
    Completion {
        /// Shell of the script
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// The options of a running agentk.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// Address of kas: ws(s)://host[:port][/prefix], or grpc(s)://host[:port] for GitLab's kas
    ///
    /// agentk connects through the HTTP proxy that HTTPS_PROXY (for wss and grpcs) or HTTP_PROXY (for ws and grpc) names, unless
    /// NO_PROXY exempts kas.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, env = "AGENTK_KAS_ADDRESS", help_heading = "kas",
        required_unless_present = "listen")]
    pub kas_address: Option<KasAddress>,
    /// Protocol with kas
    ///
    /// An address of gRPC always has the protocol of GitLab's kas.
    #[arg(
        long,
        value_name = "PROTOCOL",
        value_enum,
        default_value = "auto",
        env = "AGENTK_PROTOCOL",
        help_heading = "kas"
    )]
    pub protocol: ProtocolChoice,
    /// File that contains the agent token; read again for each tunnel, so that it can be rotated
    ///
    /// While the file cannot be used, agentk uses the last good token. The environment variable AGENTK_TOKEN may contain the
    /// token instead.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_TOKEN_FILE", help_heading = "kas")]
    pub token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for kas instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_KAS_CA_CERT_FILE", help_heading = "kas")]
    pub kas_ca_cert_file: Option<PathBuf>,
    /// Name in kas's certificate, if it is not the host of the address
    #[arg(long, value_name = "NAME", help_heading = "kas", value_parser = NonEmptyStringValueParser::new())]
    pub kas_tls_server_name: Option<String>,
    /// Header to add to the requests that open tunnels, for proxies in front of kas: "Name: value"; may be repeated
    #[arg(long = "kas-header", value_name = "HEADER", help_heading = "kas")]
    pub kas_headers: Vec<KasHeader>,
    /// Number of tunnels to keep open, to different replicas of kas if there are several
    ///
    /// With GitLab's kas there is one connection, whatever the number is: it carries up to 500 requests at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16),
        help_heading = "kas")]
    pub tunnels: u16,
    /// Address at which kas connects to agentk, in a cluster that may open no connections: [host]:port
    ///
    /// Beyond this machine, it needs a certificate, and --listen-client-ca-file, --listen-key-file or --listen-jwt-file, by which kas
    /// authenticates. See docs/receptive.md.
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address, conflicts_with = "kas_address", env = "AGENTK_LISTEN",
        help_heading = "kas dials")]
    pub listen: Option<SocketAddr>,
    /// Certificate chain (PEM) of agentk; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["listen", "listen_certificate_key_file"],
        env = "AGENTK_LISTEN_CERTIFICATE_FILE", help_heading = "kas dials")]
    pub listen_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen_certificate_file",
        env = "AGENTK_LISTEN_CERTIFICATE_KEY_FILE", help_heading = "kas dials")]
    pub listen_certificate_key_file: Option<PathBuf>,
    /// Certificates (PEM) of the authority of kas's certificate, without which no connection is accepted
    ///
    /// Every certificate of the authority is accepted: use one that issues certificates for kas only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen_certificate_file",
        env = "AGENTK_LISTEN_CLIENT_CA_FILE", help_heading = "kas dials")]
    pub listen_client_ca_file: Option<PathBuf>,
    /// File that contains the key that kas has to send; read again when it changes
    ///
    /// The identity file of kas names a file with the same key (agents[].key_file). While the key is rotated, the file of agentk may
    /// have two, on two lines.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen", env = "AGENTK_LISTEN_KEY_FILE",
        help_heading = "kas dials")]
    pub listen_key_file: Option<PathBuf>,
    /// File that contains the public key (base64) that GitLab shows for the URL of the agent; read again when it changes
    ///
    /// kas sends a token that is signed with the private key, which it has from GitLab. A key of --listen-key-file is accepted, too.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen", env = "AGENTK_LISTEN_JWT_FILE",
        help_heading = "kas dials")]
    pub listen_jwt_file: Option<PathBuf>,

    /// kubeconfig file of the cluster to serve
    ///
    /// The default is KUBECONFIG, this pod's service account, or ~/.kube/config, in this order.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of the current one
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    /// Time that the API server may take to the first byte of a response, after the last byte of the request
    ///
    /// Later, the caller gets 504 with the reason cluster-timeout. Watches, logs, exec, attach, port-forward, and requests
    /// through the proxy of the API server have no limit.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = at_least_a_second,
        help_heading = "Cluster")]
    pub cluster_response_timeout: Duration,

    /// Prometheus server to serve as well: [NAME=]http(s)://host[:port][/prefix]; may be repeated
    ///
    /// Its path is /agents/AGENT/prometheus, or /agents/AGENT/prometheus.NAME. See docs/prometheus.md.
    #[arg(long, value_name = "[NAME=]URL", value_hint = ValueHint::Url, env = "AGENTK_PROMETHEUS_URL", help_heading = "Prometheus")]
    pub prometheus_url: Vec<NamedValue<ServerUrl>>,
    /// Certificates (PEM) to trust for this server instead of the system's
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_ca_cert_file: Vec<NamedValue<PathBuf>>,
    /// File that contains a bearer token for this server; read again when it changes
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_token_file: Vec<NamedValue<PathBuf>>,
    /// File that contains user:password for this server; read again when it changes
    #[arg(long, value_name = "[NAME=]FILE", value_hint = ValueHint::FilePath, requires = "prometheus_url", help_heading = "Prometheus")]
    pub prometheus_basic_auth_file: Vec<NamedValue<PathBuf>>,
    /// Namespace in which to search for a Prometheus, or '*' for all namespaces
    ///
    /// Users who may label a Service there can answer the queries, and agentk needs the right to list Services. Prefer
    /// --prometheus-url if the address is known. See docs/prometheus.md.
    #[arg(long, value_name = "NAMESPACE", env = "AGENTK_PROMETHEUS_DISCOVERY", help_heading = "Prometheus")]
    pub prometheus_discovery: Option<Namespaces>,

    /// File of the policy that requests to the cluster must satisfy; read again when it changes
    ///
    /// Without a policy, agentk sends all requests of kas to the cluster. See docs/policy.md.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_POLICY_FILE", help_heading = "Cluster")]
    pub policy_file: Option<PathBuf>,

    /// Namespaces that requests may reach, separated by commas
    ///
    /// Requests for other namespaces and for cluster-scoped objects are refused, whatever agentk may do in the cluster, but for the
    /// discovery of APIs, kubectl auth can-i and kubectl auth whoami. A scope of
    /// the configuration from kas restricts them further, and cannot extend them.
    #[arg(long, value_name = "NAMESPACE,...", env = "AGENTK_NAMESPACES", value_parser = scope, help_heading = "Cluster")]
    pub namespaces: Option<Scope>,

    /// Refuse requests without a scope from kas
    ///
    /// Without the flag, requests may reach all namespaces until kas has sent the configuration of this agent, and if that has no
    /// scope.namespaces. With the flag, only the discovery of APIs, kubectl auth can-i and kubectl auth whoami pass then.
    /// See docs/configuration-from-git.md.
    #[arg(long, env = "AGENTK_REQUIRE_SCOPE", help_heading = "Cluster")]
    pub require_scope: bool,

    /// Do not accept the configuration of this agent from kas
    ///
    /// The configuration may restrict requests to namespaces and set the log level. See docs/configuration-from-git.md.
    #[arg(long, env = "AGENTK_NO_REMOTE_CONFIGURATION", help_heading = "Cluster")]
    pub no_remote_configuration: bool,

    /// The flags of the features.
    #[command(flatten)]
    pub features: FeatureFlags,

    /// OpenTelemetry collector that traces are sent to, as OTLP over HTTP: http(s)://host[:port][/path]
    ///
    /// The default path is /v1/traces. The environment variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
    /// OTEL_EXPORTER_OTLP_ENDPOINT may contain the URL instead; without any of them there are no traces.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, help_heading = "Traces")]
    pub otlp_endpoint: Option<telemetry::OtlpEndpoint>,
    /// Certificates (PEM) to trust for the collector instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Traces")]
    pub otlp_ca_cert_file: Option<PathBuf>,
    /// File that contains the collector's token, sent as Authorization: Bearer; read again for each message
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Traces")]
    pub otlp_token_file: Option<PathBuf>,
    /// Ratio of requests to trace, from 0 to 1, if kas has not decided it
    #[arg(long, value_name = "RATIO", default_value_t, help_heading = "Traces")]
    pub otlp_sample_ratio: SampleRatio,

    /// Address to serve /liveness, /readiness and /metrics at: [host]:port
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = listen_address,
        help_heading = "Process")]
    pub observability_listen_address: SocketAddr,
    /// Time that requests in flight may take after SIGTERM
    ///
    /// Watches end within 5 s, because their clients send them again.
    ///
    /// Keep it below the pod's terminationGracePeriodSeconds, whose default is 30 s. A second signal ends agentk at once.
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = settings::duration::parse,
        help_heading = "Process")]
    pub shutdown_grace_period: Duration,
    /// Log level: error, warn, info, debug, trace; or a level per module, such as info,agentk_core::session=debug
    #[arg(
        long,
        value_name = "LEVEL",
        env = "AGENTK_LOG_LEVEL",
        default_value = "info",
        help_heading = "Process"
    )]
    pub log_level: String,
    /// Format of log lines
    #[arg(long, value_name = "LOG_FORMAT", default_value = "text", value_parser = log_format(), env = "AGENTK_LOG_FORMAT",
        help_heading = "Process")]
    pub log_format: LogFormat,
    /// Name of the pod that agentk runs in
    #[arg(long, value_name = "NAME", env = "POD_NAME", help_heading = "Process")]
    pub pod_name: Option<String>,
    /// Namespace of that pod
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", help_heading = "Process")]
    pub pod_namespace: Option<String>,
}

impl RunOptions {
    /// Returns the options from which features are built.
    pub(crate) fn feature_options(&self) -> FeatureOptions<'_> {
        self.features.options(!self.no_remote_configuration)
    }
}

/// The environment variable that may contain the token. There is no flag for it, since every user of a machine can read command
/// lines.
pub const TOKEN_VARIABLE: &str = "AGENTK_TOKEN";

/// Returns the token from the value of [`TOKEN_VARIABLE`]. An empty variable is treated as not set.
pub fn token_from_env(value: Option<OsString>) -> Option<SecretString> {
    let value = value.filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned().into())
}

impl PrintCommand {
    /// Writes the text.
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

/// Parses a duration of at least a second, since a healthy server may take nearly as long.
fn at_least_a_second(text: &str) -> Result<Duration, String> {
    match settings::duration::parse(text).map_err(|error| error.to_string())? {
        time if time < Duration::from_secs(1) => Err("it is at least 1s".to_owned()),
        time => Ok(time),
    }
}

/// Parses names of namespaces that are separated by commas.
fn scope(text: &str) -> Result<Scope, InvalidScope> {
    Scope::new(text.split(',').map(|name| name.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::from_arguments(line.split_whitespace())
    }

    fn run_options(line: &str) -> RunOptions {
        parse(line).unwrap().run.unwrap()
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Without a hint, shells complete nothing, or any file.
    #[test]
    fn flags_of_files_and_urls_have_completion_hints() {
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
    fn reference_has_every_flag() {
        let reference = include_str!("../../../docs/configuration.md");
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
    fn only_the_address_is_required() {
        let options =
            run_options("agentk --kas-address wss://kas.example.com --token-file /etc/agentk/token");
        assert_eq!(options.kas_address.unwrap().to_string(), "wss://kas.example.com");
        assert_eq!((options.tunnels, options.shutdown_grace_period.as_secs()), (2, 25));
        assert_eq!(options.cluster_response_timeout, agentk_core::services::kubernetes::RESPONSE_TIMEOUT);
        assert_eq!(options.observability_listen_address.to_string(), "[::]:8080");
        assert!(options.prometheus_url.is_empty() && options.prometheus_discovery.is_none());
    }

    #[test]
    fn invalid_value_is_refused_with_its_flag() {
        for (flags, expected) in [
            ("--kas-address https://kas", "write it like wss://kas.example.com"),
            ("--kas-address grpc://kas/prefix", "has a path, which gRPC does not support"),
            ("--kas-address wss://kas --protocol websocket", "[possible values: auto, kas-tunnel, gitlab]"),
            ("--kas-address wss://kas --tunnels 17", "--tunnels"),
            ("--kas-address wss://kas --tunnels 0", "--tunnels"),
            ("--kas-address wss://kas --prometheus-url prometheus:9090", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-url Thanos=http://p", "\"Thanos\" is not a name"),
            ("--kas-address wss://kas --prometheus-url thanos=p:9090", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-ca-cert-file /ca", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-token-file a=/t", "--prometheus-url"),
            ("--kas-address wss://kas --prometheus-discovery A_B", "--prometheus-discovery"),
            ("--kas-address wss://kas --namespaces *", "\"*\" is not a namespace"),
            ("--kas-address wss://kas --namespaces=", "\"\" is not a namespace"),
            ("--kas-address wss://kas --namespaces shop,", "\"\" is not a namespace"),
            ("--kas-address wss://kas --observability-listen-address 8080", "write it like :8080"),
            ("--kas-address wss://kas --otlp-endpoint collector:4318", "--otlp-endpoint"),
            ("--kas-address wss://kas --hubble-address hubble-relay:80", "--hubble-address"),
            ("--kas-address wss://kas --hubble-ca-cert-file ca.crt", "--hubble-address"),
            (
                "--kas-address wss://kas --hubble-address https://h --hubble-client-cert-file c",
                "--hubble-client-key-file",
            ),
            ("--kas-address wss://kas --otlp-sample-ratio 2", "--otlp-sample-ratio"),
            ("--kas-address wss://kas --shutdown-grace-period 5", "number and a unit"),
            ("--kas-address wss://kas --cluster-response-timeout 0s", "it is at least 1s"),
            ("--kas-address wss://kas --token secret", "--token"),
            ("--kas-address wss://kas --kas-header X", "write it like \"Name: value\""),
            ("--kas-address wss://kas --kas-header Host:x", "host is set by agentk itself"),
            ("", "--kas-address"),
            ("--kas-address wss://kas --listen :8150", "cannot be used with"),
            ("--listen :8150 --listen-certificate-file a", "--listen-certificate-key-file"),
            ("--listen :8150 --listen-client-ca-file a", "--listen-certificate-file"),
        ] {
            let error = parse(&format!("agentk {flags}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }

    #[test]
    fn listen_address_may_be_a_port() {
        let options = run_options("agentk --kas-address ws://kas --observability-listen-address :9000");
        assert_eq!(options.observability_listen_address.to_string(), "[::]:9000");
    }

    #[test]
    fn agentk_listens_with_or_without_a_command() {
        for line in ["agentk --listen :8150", "agentk serve --listen :8150"] {
            let options = match parse(line).unwrap() {
                Cli { command: Some(Command::Serve(options)), .. } => *options,
                Cli { run, .. } => run.unwrap(),
            };
            assert_eq!(options.listen.unwrap().to_string(), "[::]:8150");
            assert!(options.kas_address.is_none());
        }
    }

    #[test]
    fn check_takes_the_flags_of_running() {
        let check = parse("agentk check --kas-address wss://kas --prometheus-url http://p").unwrap();
        assert!(matches!(check.command, Some(Command::Check(run)) if run.prometheus_url.len() == 1));
        assert!(parse("agentk check").unwrap_err().to_string().contains("--kas-address"));
    }

    #[test]
    fn print_commands_need_no_address() {
        for (line, word) in [("agentk completion bash", "--kas-address"), ("agentk man", ".TH agentk")] {
            let mut out = Vec::new();
            let Some(Command::Print(print)) = parse(line).unwrap().command else { panic!("{line}") };
            print.run(&mut out).unwrap();
            assert!(String::from_utf8(out).unwrap().contains(word), "{line}");
        }
    }
}
