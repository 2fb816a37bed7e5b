//! What a configuration promises: read whole, then bound.

use std::{path::Path, sync::Arc, time::Duration};

use proto::ReplicaId;
use router::{
    MemoryStore, Replica,
    redis::{self, RedisStore},
};
use telemetry::Program;

use super::App;
use crate::{
    api::{Api, Verifier},
    config::{Config, ConfigError},
    identity::Identity,
    listen::{BindError, Listener},
    peers::{Fleet, address::Surroundings, reach::Reach, seal, setup::Setup},
    tls::Certificate,
    traces::{self, Traces},
};

/// Open connections of probes and scrapers.
const MAX_PROBES: usize = 100;
/// Open connections of programs that ask who is connected.
const MAX_PROGRAMS: usize = 1000;
/// How long a probe, or such a program, may take to say its first byte.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a configuration promises, read and found usable.
#[derive(Debug)]
pub struct Checked {
    pub(super) config: Config,
    pub(super) private: Option<Setup>,
    identity: Identity,
    agent_certificate: Option<Certificate>,
    public_certificate: Option<Certificate>,
    api_certificate: Option<Certificate>,
    api: Option<Verifier>,
    traces: Option<telemetry::TracerConfig>,
    pub(super) redis: Option<redis::Settings>,
}

/// The bound listeners.
#[derive(Debug)]
pub struct Listeners {
    /// For agents.
    pub agent: Listener,
    /// For callers.
    pub public: Listener,
    /// For other replicas, if there may be some.
    pub private: Option<Listener>,
    /// For programs that ask who is connected, if some may.
    pub api: Option<Listener>,
    /// For probes.
    pub observability: Listener,
}

impl Checked {
    /// Reads everything that a configuration file names, and binds nothing.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let config = Config::read(file)?;
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
        let api = config.api.as_ref().map(|api| {
            let path = &api.listen.authentication_secret_file;
            let wrong = |what| {
                let key = "api.listen.authentication_secret_file".to_owned();
                ConfigError::new(file, path.referenced, key, format!("{}: {what}", path.value.display()))
            };
            seal::read(&path.value).map(|secret| Verifier::new(&secret)).map_err(wrong)
        });
        let api = api.transpose()?;
        let traces = traces::settings(file, &config.observability.tracing)?;
        let redis = config.redis.as_ref().map(|redis| redis.settings(file)).transpose()?;
        let identity = Identity::read(&config.identity.file.value)?;
        let private = config.private_api.as_ref();
        let private = private.map(|section| Setup::read(file, section, Surroundings::here())).transpose()?;
        if redis.is_some() && private.is_none() {
            let what = "redis is for several replicas, which reach each other through private_api.listen: add that section";
            return Err(ConfigError::whole(file, what.to_owned()));
        }
        Ok(Self {
            config,
            private,
            identity,
            agent_certificate,
            public_certificate,
            api_certificate,
            api,
            traces,
            redis,
        })
    }

    /// How many agents and tokens of callers there are.
    pub fn counts(&self) -> (usize, usize) {
        self.identity.counts()
    }

    /// How it logs.
    pub fn logging(&self) -> &crate::config::Logging {
        &self.config.observability.logging
    }

    /// Binds the listeners and builds the rest.
    pub async fn bind(self) -> Result<(App, Listeners), BindError> {
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
                config.agent.listen.max_connections,
                config.agent.listen.handshake_timeout,
            )
            .await?,
            public: Listener::bind(
                "public",
                addresses.1,
                public,
                limits.max_connections,
                limits.handshake_timeout,
            )
            .await?,
            private: match &self.private {
                Some(setup) => Some(setup.bind().await?),
                None => None,
            },
            api: match &config.api {
                Some(api) => {
                    let tls = self.api_certificate.as_ref().map(|pair| pair.acceptor(&[b"http/1.1"]));
                    let address = api.listen.address;
                    Some(Listener::bind("api", address, tls, MAX_PROGRAMS, PROBE_TIMEOUT).await?)
                }
                None => None,
            },
            observability: Listener::bind(
                "observability",
                config.observability.listen.address,
                None,
                MAX_PROBES,
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
        let peer_certificate = self.private.as_ref().and_then(Setup::certificate).cloned();
        let mut fleet = Fleet::alone(replica, Arc::new(MemoryStore::default()), &config);
        if let (Some(setup), Some(listener)) = (self.private, &listeners.private) {
            let url = setup.url(listener.address());
            tracing::info!(%url, "other replicas are told this address");
            fleet = setup.fleet(fleet, &config);
            if let Some(settings) = self.redis {
                let replica = own.insert(Replica { id: replica, url: url.to_string() });
                let (store, keeper) = RedisStore::new(settings, replica.clone(), env!("CARGO_PKG_VERSION"));
                fleet.store = Arc::new(store.clone());
                redis = Some((store, keeper));
            }
        }
        let mut app = App::of_replica(fleet, config, self.identity, traces, exporter, redis);
        let public = self.agent_certificate.into_iter().chain(self.public_certificate);
        app.certificates = public.chain(self.api_certificate).chain(peer_certificate).collect();
        app.reach = own.map(|own| {
            let peers = app.callers.forwarder.peers.clone();
            Reach { peers, store: Arc::clone(&app.callers.forwarder.store), own }
        });
        app.api = self.api.map(|verifier| Arc::new(Api::of(&app.agents, verifier)));
        Ok((app, listeners))
    }
}
