//! The parts that the flags and the environment describe: the token, the way to kas, traces, and the files to follow.

use std::{collections::BTreeMap, ffi::OsString, iter, path::PathBuf};

use agentk_core::{
    AgentToken, FileFollowers, KasAddress, TcpDialer,
    cluster::{CredentialFile, CredentialKind},
    connect::{HttpProxy, ProtocolChoice},
    services::PrometheusService,
    upstream::{ClientTlsConfig, Pem},
};
use anyhow::Context as _;
use proto::ServiceName;
use rustls::pki_types::ServerName;
use secrecy::SecretString;
use telemetry::{Collector, TracerConfig, environment::OtlpEnvironment};

use crate::{
    cli::{NamedValue, RunOptions, TOKEN_VARIABLE},
    features::enabled_features,
};

/// Returns the agent token of the file or of the environment. It reads the file, which blocks.
pub(crate) fn agent_token(
    options: &RunOptions,
    variable: Option<SecretString>,
) -> anyhow::Result<AgentToken> {
    let token = match (options.token_file.clone(), variable) {
        (Some(file), None) => AgentToken::file(file),
        (None, Some(token)) => AgentToken::value(token),
        (Some(_), Some(_)) => anyhow::bail!(
            "there are two agent tokens, from --token-file and from {TOKEN_VARIABLE}: remove one of them"
        ),
        (None, None) => anyhow::bail!(
            "there is no agent token: name its file with --token-file, or put it into the environment variable \
             {TOKEN_VARIABLE}"
        ),
    };
    token.reload()?;

    Ok(token)
}

/// Checks that the flags of the scope agree.
pub(crate) fn check_scope(options: &RunOptions) -> anyhow::Result<()> {
    anyhow::ensure!(
        !(options.require_scope && options.no_remote_configuration),
        "--require-scope needs the configuration from kas, which --no-remote-configuration refuses: remove one of them"
    );
    Ok(())
}

/// Returns the services that the policy of the cluster's owner may name.
pub(crate) fn policy_services(
    options: &RunOptions,
    prometheus: &BTreeMap<ServiceName, PrometheusService>,
) -> Vec<ServiceName> {
    let name = |name: &str| name.parse().expect("a constant that is a service name");
    let discovered = options.prometheus_discovery.as_ref().map(|_| ServiceName::PROMETHEUS);
    let features = options.feature_options();
    let enabled = enabled_features(&features);
    let constants = iter::once(ServiceName::KUBERNETES)
        .chain(discovered)
        .chain(enabled.flat_map(|feature| feature.services.iter().copied()));
    constants.map(name).chain(prometheus.keys().cloned()).collect()
}

/// Checks that the protocol is possible at the address of kas.
pub(super) fn check_protocol(protocol: ProtocolChoice, kas: &KasAddress) -> anyhow::Result<()> {
    anyhow::ensure!(
        !(kas.is_grpc() && protocol == ProtocolChoice::KasTunnel),
        "--protocol kas-tunnel needs a WebSocket, and --kas-address {kas} has none: write wss:// or ws://, or use --protocol gitlab"
    );
    Ok(())
}

/// Returns the dialer of kas, through the proxy of the environment if there is one. It reads certificates, which blocks.
pub(crate) fn dialer(options: &RunOptions, kas: &KasAddress) -> anyhow::Result<TcpDialer> {
    let name = options.kas_tls_server_name.clone();
    let server_name = name.map(ServerName::try_from).transpose();
    let server_name = server_name.context("--kas-tls-server-name is neither a DNS name nor an IP address")?;
    let ca = options.kas_ca_cert_file.clone().map(Pem::File);
    let tls = ClientTlsConfig { ca, server_name, ..ClientTlsConfig::default() };

    let proxy = HttpProxy::from_env(kas, &|name| std::env::var_os(name))?;
    if let Some(proxy) = &proxy {
        tracing::info!(%proxy, "connecting to kas through a proxy");
    }
    let dialer = TcpDialer::new(kas.clone(), tls).context("--kas-ca-cert-file")?;

    Ok(dialer.through(proxy))
}

/// Returns the configuration of traces, or `None` without a collector. It reads the files that are named, which blocks.
///
/// A flag takes precedence over the environment variable with the same meaning; an error names the one or the other.
pub(crate) fn tracer_config(
    options: &RunOptions,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Option<TracerConfig>> {
    let environment = OtlpEnvironment::read(variable)?;
    let Some(endpoint) = options.otlp_endpoint.clone().or(environment.endpoint) else {
        let files = [
            ("--otlp-ca-cert-file", &options.otlp_ca_cert_file),
            ("--otlp-token-file", &options.otlp_token_file),
        ];
        if let Some((flag, _)) = files.iter().find(|(_, file)| file.is_some()) {
            anyhow::bail!("{flag} has no effect without --otlp-endpoint");
        }
        return Ok(None);
    };

    let (ca_file, origin) = match &options.otlp_ca_cert_file {
        Some(file) => (Some(file.clone()), "--otlp-ca-cert-file"),
        None => (environment.ca_file, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    };
    let collector = Collector::new(endpoint, ca_file).context(origin)?;
    let mut collector = collector.with_headers(environment.headers);
    if let Some(file) = options.otlp_token_file.clone() {
        collector = collector.with_token(file).context("--otlp-token-file")?;
    }
    Ok(Some(TracerConfig { collector, ratio: options.otlp_sample_ratio }))
}

/// Follows the files that flags name. It reads their metadata, which blocks.
pub(super) fn follow_files(options: &RunOptions, token: &AgentToken, followers: &mut FileFollowers) {
    if let Some(path) = token.path() {
        let token = token.clone();
        followers.check("--token-file", vec![path.to_owned()], move || token.reload().map(drop));
    }
    if let Some(path) = &options.kas_ca_cert_file {
        let pem = Pem::File(path.clone());
        followers.check("--kas-ca-cert-file", vec![path.clone()], move || pem.check_authorities());
    }
    let key = |flag: &str, file: &NamedValue<PathBuf>| match &file.name {
        Some(name) => format!("{flag} {name}"),
        None => flag.to_owned(),
    };
    for file in &options.prometheus_ca_cert_file {
        let (key, path) = (key("--prometheus-ca-cert-file", file), file.value.clone());
        let pem = Pem::File(path.clone());
        followers.check(&key, vec![path], move || pem.check_authorities());
    }
    let tokens = options.prometheus_token_file.iter();
    let tokens = tokens.map(|file| ("--prometheus-token-file", CredentialKind::Token, file));
    let passwords = options.prometheus_basic_auth_file.iter();
    let passwords = passwords.map(|file| ("--prometheus-basic-auth-file", CredentialKind::Password, file));
    for (flag, kind, file) in tokens.chain(passwords) {
        let (key, path) = (key(flag, file), file.value.clone());
        followers.check(&key, vec![path.clone()], move || CredentialFile::open(path.clone(), kind).map(drop));
    }
}
