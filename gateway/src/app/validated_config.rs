//! A configuration with the content of all files that it names, and the listeners that are bound from it.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::ReplicaId;
use router::{
    MemoryStore, Replica,
    redis::{RedisSettings, RedisStore},
};
use telemetry::Program;

use super::{App, connection_limits::ConnectionLimits};
use crate::{
    api::{ApiServer, Verifier},
    config::{Config, ConfigError, unreadable},
    identity::Identity,
    listen::{BindError, Listener},
    peers::{self, NetworkEnv, PeerConfig, ReachabilityProbe, ReplicaContext},
    secret::SecretFile,
    tls::{Certificate, MutualTls},
    traces::{self, Traces},
};

/// Connections of probes and Prometheus.
const MAX_PROBES: usize = 100;
/// Connections to the internal API.
const MAX_API_CLIENTS: usize = 1000;
/// The time that these clients may take for their first byte.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration whose files are read and valid.
#[derive(Debug)]
pub struct ValidatedConfig {
    pub(super) config: Config,
    pub(super) private: Option<PeerConfig>,
    identity: Identity,
    agent_certificate: Option<Certificate>,
    public_certificate: Option<Certificate>,
    api_certificate: Option<Certificate>,
    api_secret: Option<SecretFile>,
    traces: Option<telemetry::TracerConfig>,
    pub(super) redis: Option<RedisSettings>,
}

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
    /// `observability.listen`.
    pub observability: Listener,
}

impl ValidatedConfig {
    /// Reads a configuration and all files that it names. Binds no listener.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let config = Config::read(file)?;
        config.check_addresses(file)?;
        let agent = &config.agent.listen;
        let public = &config.agent.kubernetes_api.listen;
        let agent_certificate = Certificate::read(
            file,
            "agent.listen",
            agent.certificate_file.as_ref(),
            agent.key_file.as_ref(),
        )?;
        let public_certificate = Certificate::read(
            file,
            "agent.kubernetes_api.listen",
            public.certificate_file.as_ref(),
            public.key_file.as_ref(),
        )?;
        let api_certificate = match config.api.as_ref().map(|api| &api.listen) {
            Some(api) => {
                Certificate::read(file, "api.listen", api.certificate_file.as_ref(), api.key_file.as_ref())?
            }
            None => None,
        };
        let api_secret = config.api.as_ref().map(|api| {
            let path = &api.listen.authentication_secret_file;
            SecretFile::read(file, "api.listen.authentication_secret_file", path)
        });
        let api_secret = api_secret.transpose()?;
        let traces = traces::settings(file, &config.observability.tracing)?;
        let redis = config.redis.as_ref().map(|redis| redis.settings(file, config.keys())).transpose()?;
        let path = &config.identity.file;
        // Errors in the content have the lines of that file.
        files::metadata(&path.value).map_err(|error| {
            let what = format!("{}: {}", path.value.display(), unreadable(&error));
            ConfigError::new(file, path.referenced, "identity.file", what)
        })?;
        let identity = Identity::read(&path.value)?;
        let private = config.private_api.as_ref();
        let private = private
            .map(|section| PeerConfig::read(file, section, config.keys(), NetworkEnv::from_process()))
            .transpose()?;
        if redis.is_some() && private.is_none() {
            let what = "this section is for several replicas, which connect to each other through private_api.listen: add that section";
            return Err(config.error(file, "redis", what));
        }
        Ok(Self {
            config,
            private,
            identity,
            agent_certificate,
            public_certificate,
            api_certificate,
            api_secret,
            traces,
            redis,
        })
    }

    /// Returns the numbers of agents and of callers' tokens.
    pub fn counts(&self) -> (usize, usize) {
        self.identity.counts()
    }

    /// Returns an error for each certificate that clients refuse now, because it is expired or not yet valid.
    pub fn invalid_certificates(&self) -> impl Iterator<Item = ConfigError> {
        let own = [&self.agent_certificate, &self.public_certificate, &self.api_certificate];
        let private = self.private.as_ref().and_then(PeerConfig::tls).map(MutualTls::certificate);
        let certificates = own.into_iter().flatten().chain(private);
        certificates.filter_map(|certificate| certificate.validate(SystemTime::now()).err())
    }

    /// Returns the configuration of the log.
    pub fn logging(&self) -> &crate::config::LoggingConfig {
        &self.config.observability.logging
    }

    /// Returns the number of connections that each listener may have open.
    fn connection_limits(&self, open_files: u64) -> ConnectionLimits {
        let configured = ConnectionLimits {
            agent: self.config.agent.listen.max_connections,
            public: self.config.agent.kubernetes_api.limits.max_connections,
            private: if self.private.is_some() { peers::MAX_CONNECTIONS } else { 0 },
            api: if self.api_secret.is_some() { MAX_API_CLIENTS } else { 0 },
            observability: MAX_PROBES,
        };
        let Some(reduced) = configured.reduced_to(open_files) else { return configured };
        tracing::warn!(
            open_files,
            agent_connections = reduced.agent,
            caller_connections = reduced.public,
            "the limit of open files is too low for max_connections of agent.listen and of \
             agent.kubernetes_api.limits: raise the hard limit (ulimit -Hn, LimitNOFILE=), or lower these keys"
        );
        reduced
    }

    /// Binds the listeners and builds the replica.
    ///
    /// `open_files` is the limit of the process. If the configured connections do not fit into it, the listeners get fewer, and
    /// a warning is logged.
    pub async fn bind(self, open_files: u64) -> Result<(App, Listeners), BindError> {
        let connections = self.connection_limits(open_files);
        let config = self.config;
        let agent = self.agent_certificate.as_ref().map(|pair| pair.acceptor(&[b"http/1.1"]));
        let public = self.public_certificate.as_ref().map(|pair| pair.acceptor(&[b"h2", b"http/1.1"]));
        let limits = &config.agent.kubernetes_api.limits;
        let addresses = (config.agent.listen.address, config.agent.kubernetes_api.listen.address);
        let listeners = Listeners {
            agent: Listener::bind(
                "agent",
                addresses.0,
                agent,
                connections.agent,
                config.agent.listen.handshake_timeout,
            )
            .await?,
            public: Listener::bind(
                "public",
                addresses.1,
                public,
                connections.public,
                limits.handshake_timeout,
            )
            .await?,
            private: match &self.private {
                Some(setup) => Some(setup.bind(connections.private).await?),
                None => None,
            },
            api: match &config.api {
                Some(api) => {
                    let tls = self.api_certificate.as_ref().map(|pair| pair.acceptor(&[b"h2", b"http/1.1"]));
                    let address = api.listen.address;
                    Some(Listener::bind("api", address, tls, connections.api, PROBE_TIMEOUT).await?)
                }
                None => None,
            },
            observability: Listener::bind(
                "observability",
                config.observability.listen.address,
                None,
                connections.observability,
                PROBE_TIMEOUT,
            )
            .await?,
        };
        let replica = ReplicaId::random();
        let program =
            Program { name: "kas", version: env!("CARGO_PKG_VERSION"), instance: replica.to_string() };
        let (tracer, exporter) = self.traces.map(|settings| settings.build(&program)).unzip();
        let trust_callers = config.observability.tracing.trust_callers;
        let traces = tracer.map(|tracer| Traces { tracer, trust_callers });
        let (mut redis, mut own) = (None, None);
        let peer_tls = self.private.as_ref().and_then(PeerConfig::tls).cloned();
        let peer_secret = self.private.as_ref().and_then(PeerConfig::secret).cloned();
        let mut fleet = ReplicaContext::standalone(replica, Arc::new(MemoryStore::default()), &config);
        if let (Some(setup), Some(listener)) = (self.private, &listeners.private) {
            let url = setup.url(listener.address());
            tracing::info!(%url, "address for other replicas");
            fleet = setup.apply_to(fleet, &config);
            if let Some(settings) = self.redis {
                let replica = own.insert(Replica { id: replica, url: url.to_string() });
                let (store, sync) = RedisStore::new(settings, replica.clone(), env!("CARGO_PKG_VERSION"));
                fleet.store = Arc::new(store.clone());
                redis = Some((store, sync));
            }
        }
        let mut app = App::of_replica(fleet, config, self.identity, traces, exporter, redis);
        let public = self.agent_certificate.into_iter().chain(self.public_certificate);
        let peer_certificate = peer_tls.as_ref().map(MutualTls::certificate).cloned();
        app.certificates = public.chain(self.api_certificate).chain(peer_certificate).collect();
        app.secrets = peer_secret.into_iter().chain(self.api_secret.clone()).collect();
        app.peer_tls = peer_tls;
        app.reachability = own.map(|own| {
            let peers = app.callers.forwarder.peers.clone();
            ReachabilityProbe { client: peers, store: Arc::clone(&app.callers.forwarder.store), own }
        });
        app.api = self.api_secret.map(|file| {
            let verifier = Verifier::new(file.secret().clone());
            Arc::new(ApiServer::new(&app.agents, app.gitaly.clone(), verifier))
        });
        Ok((app, listeners))
    }
}
