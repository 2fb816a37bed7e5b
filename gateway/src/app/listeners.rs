//! The listeners of a replica, and their certificates.

use std::{path::Path, time::Duration};

use kas_listen::{
    addresses::AddressRules,
    listener::{BindError, Listener},
    tls::Certificate,
};
use settings::ConfigError;

use super::connection_limits::ConnectionLimits;
use crate::config::{AgentProtocol, Config};
use kas_core::peers::PeerConfig;

/// The time that clients of the internal API and of probes may take for their first byte.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The bound listeners.
#[derive(Debug)]
pub struct Listeners {
    /// `agent.listen`.
    pub agent: Listener,
    /// `agent.kubernetes_api.listen`.
    pub public: Listener,
    /// `private_api.listen`, if it is configured.
    pub private: Option<Listener>,
    /// `api.listen`, if it is configured.
    pub api: Option<Listener>,
    /// `web.listen`, if it is configured.
    pub web: Option<Listener>,
    /// `observability.listen`.
    pub observability: Listener,
}

/// The certificates of the listeners that have one, without that for other replicas.
#[derive(Debug)]
pub(super) struct ListenerCertificates {
    agent: Option<Certificate>,
    public: Option<Certificate>,
    api: Option<Certificate>,
    web: Option<Certificate>,
}

impl ListenerCertificates {
    /// Reads the certificates that a configuration names.
    pub(super) fn read(file: &Path, config: &Config) -> Result<Self, ConfigError> {
        let (listen, callers) = (&config.agent.listen, &config.agent.kubernetes_api.listen);
        let agent = Certificate::read(
            file,
            "agent.listen",
            listen.certificate_file.as_ref(),
            listen.key_file.as_ref(),
        )?;
        let public = Certificate::read(
            file,
            "agent.kubernetes_api.listen",
            callers.certificate_file.as_ref(),
            callers.key_file.as_ref(),
        )?;
        let api = match config.api.as_ref().map(|api| &api.listen) {
            Some(api) => {
                Certificate::read(file, "api.listen", api.certificate_file.as_ref(), api.key_file.as_ref())?
            }
            None => None,
        };
        let web = match config.web.as_ref().map(|web| &web.listen) {
            Some(web) => {
                Certificate::read(file, "web.listen", web.certificate_file.as_ref(), web.key_file.as_ref())?
            }
            None => None,
        };
        Ok(Self { agent, public, api, web })
    }

    /// Returns the certificates.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Certificate> {
        [&self.agent, &self.public, &self.api, &self.web].into_iter().flatten()
    }
}

impl Listeners {
    /// Binds the listeners.
    pub(super) async fn bind(
        config: &Config,
        certificates: &ListenerCertificates,
        private: Option<&PeerConfig>,
        connections: ConnectionLimits,
    ) -> Result<Self, BindError> {
        // HTTP/1.1 first: a WebSocket needs it, and gRPC offers nothing but HTTP/2.
        let alpn: &'static [&'static [u8]] =
            if config.agent.listen.enabled_protocols().contains(&AgentProtocol::Http2) {
                &[b"http/1.1", b"h2"]
            } else {
                &[b"http/1.1"]
            };
        let agent = certificates.agent.as_ref().map(|pair| pair.acceptor(alpn));
        let public = certificates.public.as_ref().map(|pair| pair.acceptor(&[b"h2", b"http/1.1"]));
        let limits = &config.agent.kubernetes_api.limits;
        let addresses = (config.agent.listen.address, config.agent.kubernetes_api.listen.address);
        Ok(Self {
            agent: Listener::bind(
                "agent",
                addresses.0,
                config.agent.listen.addresses(),
                agent,
                connections.agent,
                config.agent.listen.handshake_timeout,
            )
            .await?,
            public: Listener::bind(
                "public",
                addresses.1,
                config.agent.kubernetes_api.listen.addresses(),
                public,
                connections.public,
                limits.handshake_timeout,
            )
            .await?,
            private: match private {
                Some(setup) => Some(setup.bind(connections.private).await?),
                None => None,
            },
            api: match &config.api {
                Some(api) => {
                    let tls = certificates.api.as_ref().map(|pair| pair.acceptor(&[b"h2", b"http/1.1"]));
                    let (address, rules) = (api.listen.address, api.listen.addresses());
                    Some(Listener::bind("api", address, rules, tls, connections.api, PROBE_TIMEOUT).await?)
                }
                None => None,
            },
            web: match &config.web {
                Some(web) => {
                    let tls = certificates.web.as_ref().map(|pair| pair.acceptor(&[b"h2", b"http/1.1"]));
                    let (address, rules) = (web.listen.address, web.listen.addresses());
                    let timeout = limits.handshake_timeout;
                    Some(Listener::bind("web", address, rules, tls, connections.web, timeout).await?)
                }
                None => None,
            },
            observability: Listener::bind(
                "observability",
                config.observability.listen.address,
                AddressRules::without_proxies(&config.observability.listen.allowed_networks),
                None,
                connections.observability,
                PROBE_TIMEOUT,
            )
            .await?,
        })
    }
}
