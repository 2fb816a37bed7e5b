//! The way to kas: agentk dials it, or listens for it.

use agentk_core::{
    Agent, FileFollowers, KasAddress, ListenConfig, ListenKey, ListenPublicKey, ListenTls, ListeningAgent,
    Observability, ProtocolChoice, ServeConfig, Services, SessionConfig, TcpDialer, connect::KasHeader,
};
use agentk_gitlab::gitlab_protocol;
use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::flags::{check_protocol, dialer};
use crate::cli::RunOptions;

/// The end that opens the tunnels.
pub(crate) enum KasConnection {
    /// agentk dials this kas.
    Dials(KasAddress, Box<TcpDialer>),
    /// kas dials agentk.
    Listens(ListenConfig),
}

/// An agent with either end that opens its tunnels.
pub(super) enum AnyAgent {
    Dials(Agent<TcpDialer>),
    Listens(ListeningAgent),
}

/// An agent whose address is bound, if it has one.
pub(super) enum BoundAgent {
    Dials(Agent<TcpDialer>),
    Listens(ListeningAgent, TcpListener),
}

impl KasConnection {
    /// Builds the way to kas that the flags describe. It reads certificates and keys, which blocks.
    pub(crate) fn new(options: &RunOptions) -> anyhow::Result<Self> {
        match (&options.kas_address, options.listen) {
            (Some(kas), _) => {
                let files =
                    [&options.listen_certificate_file, &options.listen_key_file, &options.listen_jwt_file];
                anyhow::ensure!(
                    files.iter().all(|file| file.is_none()),
                    "--listen-certificate-file, --listen-key-file and --listen-jwt-file need --listen, in place of --kas-address"
                );
                check_protocol(options.protocol, kas)?;
                Ok(Self::Dials(kas.clone(), Box::new(dialer(options, kas)?)))
            }
            (None, Some(address)) => {
                // They describe the kas that agentk dials. Nobody should take --kas-ca-cert-file for the authority of its clients.
                anyhow::ensure!(
                    options.protocol != ProtocolChoice::GitLab
                        && options.kas_headers.is_empty()
                        && options.kas_ca_cert_file.is_none()
                        && options.kas_tls_server_name.is_none(),
                    "--protocol gitlab, --kas-header, --kas-ca-cert-file and --kas-tls-server-name need --kas-address, in place \
                     of --listen; --listen-client-ca-file authenticates kas"
                );
                let certificate = options.listen_certificate_file.clone();
                let key = options.listen_certificate_key_file.clone();
                let client_ca = options.listen_client_ca_file.clone();
                let pair = certificate.zip(key);
                let tls = pair
                    .map(|(certificate, key)| ListenTls::from_flags("listen", certificate, key, client_ca));
                let tls = tls.transpose()?;
                let key = options.listen_key_file.clone().map(ListenKey::read);
                let key = key.transpose().context("--listen-key-file")?;
                let public_key = options.listen_jwt_file.clone().map(ListenPublicKey::read);
                let public_key = public_key.transpose().context("--listen-jwt-file")?;
                let config = ListenConfig { address, tls, key, public_key };
                check_security(&config)?;
                Ok(Self::Listens(config))
            }
            (None, None) => anyhow::bail!("one of --kas-address and --listen is needed"),
        }
    }

    /// Follows the files of certificates and keys.
    pub(super) fn follow_files(&self, followers: &mut FileFollowers) {
        let Self::Listens(ListenConfig { tls, key, public_key, .. }) = self else { return };
        if let Some(tls) = tls.clone() {
            followers.check("--listen-certificate-file", tls.files(), move || tls.reload());
        }
        if let Some(key) = key.clone() {
            followers.check("--listen-key-file", vec![key.path().to_owned()], move || key.reload());
        }
        if let Some(key) = public_key.clone() {
            followers.check("--listen-jwt-file", vec![key.path().to_owned()], move || key.reload());
        }
    }

    pub(super) fn into_agent(
        self,
        serve: ServeConfig,
        (protocol, headers, tunnels): (ProtocolChoice, Vec<KasHeader>, u16),
        services: Services,
        observability: Observability,
    ) -> AnyAgent {
        match self {
            Self::Dials(kas, dialer) => {
                let ServeConfig { token, instance, cores, grace, pod, scope, tunnel, tracer } = serve;
                let config = SessionConfig {
                    kas,
                    token,
                    instance,
                    protocol,
                    headers,
                    tunnels,
                    cores,
                    grace,
                    pod,
                    scope,
                    tunnel,
                    tracer,
                };
                AnyAgent::Dials(Agent::new(config, *dialer, services, observability, gitlab_protocol))
            }
            Self::Listens(config) => {
                AnyAgent::Listens(ListeningAgent::new(config, serve, services, observability))
            }
        }
    }
}

impl std::fmt::Display for KasConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dials(kas, _) => kas.fmt(f),
            Self::Listens(ListenConfig { address, .. }) => write!(f, "connections at {address}"),
        }
    }
}

impl AnyAgent {
    /// Binds the address of an agentk that listens.
    pub(super) fn bind(self) -> anyhow::Result<BoundAgent> {
        Ok(match self {
            Self::Dials(agent) => BoundAgent::Dials(agent),
            Self::Listens(agent) => {
                let socket = agent
                    .bind()
                    .with_context(|| format!("cannot listen on {} (--listen)", agent.address()))?;
                BoundAgent::Listens(agent, socket)
            }
        })
    }
}

impl BoundAgent {
    pub(super) async fn run(self, shutdown: CancellationToken) {
        match self {
            Self::Dials(agent) => agent.run(shutdown).await,
            Self::Listens(agent, socket) => agent.run(socket, shutdown).await,
        }
    }
}

/// Checks that nobody but kas can use the listener: it sends the agent token to its client, and executes the requests of it.
fn check_security(config: &ListenConfig) -> anyhow::Result<()> {
    let ListenConfig { address, tls, key, public_key } = config;
    if address.ip().is_loopback() {
        return Ok(());
    }
    let tls = tls.as_ref().with_context(|| {
        format!(
            "--listen {address} is reachable from other machines and needs TLS: name a certificate with \
             --listen-certificate-file and --listen-certificate-key-file"
        )
    })?;
    anyhow::ensure!(
        tls.authenticates_clients() || key.is_some() || public_key.is_some(),
        "--listen {address} is reachable from other machines, and kas has to authenticate: name its authority with \
         --listen-client-ca-file, a key with --listen-key-file, or the public key of GitLab with --listen-jwt-file"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, key: bool) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "k".repeat(32)).unwrap();
        let key = key.then(|| ListenKey::read(path).unwrap());
        let config = ListenConfig { address: address.parse().unwrap(), tls: None, key, public_key: None };
        check_security(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn listener_beyond_loopback_needs_tls() {
        assert_eq!(check("127.0.0.1:8150", false), Ok(()));
        assert_eq!(check("[::1]:8150", false), Ok(()));
        for address in ["0.0.0.0:8150", "10.0.0.1:8150", "[::]:8150"] {
            let error = check(address, true).unwrap_err();
            assert!(error.contains("needs TLS: name a certificate"), "{error}");
        }
    }
}
