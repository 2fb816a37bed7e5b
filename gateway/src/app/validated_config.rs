//! A configuration with the content of all files that it names, and the listeners that are bound from it.

use std::{
    fmt,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use access::{
    ApiTokenVerifier, ConfigurationLocation, Identity,
    kill_switch::{self, DisableRule},
};
use files::{SecretFile, unreadable};
use kas_environments::EnvironmentFile;
use kas_gitlab::GitLabSetup;
use kas_listen::{
    listener::BindError,
    tls::{Certificate, MutualTls},
};
use oidc::Issuers;
use proto::ReplicaId;
use serde_saphyr::Spanned;
use settings::ConfigError;
use store::{
    MemoryStore,
    redis::{DisabledRecord, RedisSettings, RedisStore},
};
use telemetry::Program;

use super::{
    App, ReplicaSources,
    connection_limits::ConnectionLimits,
    listeners::{ListenerCertificates, Listeners},
};
use crate::config::{Config, IdentityConfig};
use kas_core::{
    audit::{self, AuditLog},
    peers::{self, NetworkEnv, PeerConfig, ReachabilityProbe, ReplicaContext},
    traces::{self, Traces},
};
use kas_events::webhooks::Webhook;

/// Connections of probes and Prometheus.
const MAX_PROBES: usize = 100;
/// Connections to the internal API.
const MAX_API_CLIENTS: usize = 1000;
/// The most connections of browsers.
const MAX_BROWSERS: usize = 2000;

/// A configuration whose files are read and valid.
#[derive(Debug)]
pub struct ValidatedConfig {
    pub(super) config: Config,
    pub(super) private: Option<PeerConfig>,
    identity: Identity,
    environments: Option<EnvironmentFile>,
    disabled: Vec<DisableRule>,
    /// The copy of the rules for all replicas.
    disabled_fleet: Option<(DisabledRecord, Vec<DisableRule>)>,
    issuers: Issuers,
    certificates: ListenerCertificates,
    dial_certificate: Option<Certificate>,
    api_secret: Option<SecretFile>,
    traces: Option<telemetry::TracerConfig>,
    gitlab: Option<GitLabSetup>,
    pub(super) redis: Option<RedisSettings>,
    audit: Option<AuditOutput>,
    webhooks: Vec<Webhook>,
}

/// The opened sink of the audit log.
struct AuditOutput(Box<dyn Write + Send>);

impl fmt::Debug for AuditOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditOutput")
    }
}

impl ValidatedConfig {
    /// Reads a configuration and all files that it names. Binds no listener.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let mut config = Config::read(file)?;
        config.check_addresses(file)?;
        if let Some(web) = &mut config.web {
            web.read_documents(file)?;
        }
        let certificates = ListenerCertificates::read(file, &config)?;
        let receptive = &config.agent.receptive;
        let (chain, key) = (receptive.certificate_file.as_ref(), receptive.key_file.as_ref());
        let dial_certificate = Certificate::read(file, "agent.receptive", chain, key)?;
        let api_secret = config.api.as_ref().map(|api| {
            let path = &api.listen.authentication_secret_file;
            SecretFile::read(file, "api.listen.authentication_secret_file", path)
        });
        let api_secret = api_secret.transpose()?;
        let traces = traces::settings(file, &config.observability.tracing)?;
        let redis = config.redis.as_ref().map(|redis| redis.settings(file, config.keys())).transpose()?;
        let gitlab = config.gitlab.as_ref().map(|section| GitLabSetup::read(file, section)).transpose()?;
        // Errors in the content have the lines of that file.
        let exists = |key: &str, path: &Spanned<PathBuf>| {
            files::metadata(&path.value).map_err(|error| {
                let what = format!("{}: {}", path.value.display(), unreadable(&error));
                ConfigError::new(file, path.referenced, key, what)
            })
        };
        let identity = match &config.identity {
            Some(IdentityConfig { file: path }) => {
                exists("identity.file", path)?;
                Identity::read(&path.value)?
            }
            None => Identity::default(),
        };
        let environments = config.environments.as_ref().map(|section| {
            exists("environments.file", &section.file)?;
            EnvironmentFile::read(&section.file.value)
        });
        let environments = environments.transpose()?;
        let disabled = config.disabled.file.as_ref().map(|path| {
            exists("disabled.file", path)?;
            kill_switch::file::read(&path.value)
        });
        let disabled = disabled.transpose()?.unwrap_or_default();
        let disabled_fleet = config.disabled.fleet_file.as_ref().map(|path| {
            let key = "disabled.fleet_file";
            if redis.is_none() {
                let what = "this file is a copy of rules in Redis, and there is no section redis";
                return Err(ConfigError::new(file, path.referenced, key, what));
            }
            kill_switch::fleet::read_copy(&path.value).map_err(|error| {
                let what = format!("{error}; without this file, kas starts without these rules");
                ConfigError::new(file, path.referenced, key, what)
            })
        });
        let disabled_fleet = disabled_fleet.transpose()?.flatten();
        let issuers = Issuers::read(file, &config.oidc)?;
        if let Some(section) = &config.identity {
            identity.check_issuers(&section.file.value, &issuers.names())?;
        }
        if gitlab.as_ref().is_some_and(|setup| setup.login().is_some())
            && issuers.names().iter().any(|name| name == kas_gitlab::LOGIN_ISSUER)
        {
            let what = "people log in at GitLab under the name gitlab, and an issuer of oidc.issuers has this name, too: rename that one";
            return Err(config.error(file, "gitlab.login", what));
        }
        audit::check(file, &config.observability.audit)?;
        let webhooks = Webhook::read(file, &config.events)?;
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
            environments,
            disabled,
            disabled_fleet,
            issuers,
            certificates,
            dial_certificate,
            api_secret,
            traces,
            gitlab,
            redis,
            audit: None,
            webhooks,
        })
    }

    /// Opens the sink of the audit log, which creates its file. Without this call, the replica has no audit log.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open_audit_log(&mut self, file: &Path) -> Result<(), ConfigError> {
        self.audit = AuditLog::open(file, &self.config.observability.audit)?.map(AuditOutput);
        Ok(())
    }

    /// Returns the numbers of agents and of callers' tokens.
    pub fn counts(&self) -> (usize, usize) {
        self.identity.counts()
    }

    /// Returns the files that are configurations of agents, each with the most bytes that it may have.
    pub fn agent_configurations(&self) -> impl Iterator<Item = (&Path, usize)> {
        let max_bytes = self.config.agent.configuration.max_configuration_file_size;
        let locations =
            self.identity.agents().into_iter().filter_map(|(_, id)| self.identity.configuration(id));
        locations.filter_map(move |location| match location {
            ConfigurationLocation::File(path) => Some((&**path, max_bytes)),
            ConfigurationLocation::Repository(_) => None,
        })
    }

    /// Returns the keys of GitLab's kas that have no meaning here, with their lines, if the file has some.
    pub fn ignored_keys(&self) -> Option<String> {
        self.config.ignored_keys()
    }

    /// Returns the reason why kas at this machine does not render manifests, although it has the programs.
    pub fn rendering_problem(&self) -> Option<String> {
        self.config.agent.gitops.render.problem()
    }

    /// Returns an error for each certificate that clients refuse now, because it is expired or not yet valid.
    pub fn invalid_certificates(&self) -> impl Iterator<Item = ConfigError> {
        let private = self.private.as_ref().and_then(PeerConfig::tls).map(MutualTls::certificate);
        self.certificates
            .iter()
            .chain(private)
            .chain(&self.dial_certificate)
            .filter_map(|certificate| certificate.validate(SystemTime::now()).err())
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
            web: if self.config.web.is_some() { MAX_BROWSERS } else { 0 },
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
        let mut config = self.config;
        config.agent.kubernetes_api.limits.max_connections = connections.public;
        let listeners =
            Listeners::bind(&config, &self.certificates, self.private.as_ref(), connections).await?;
        let replica = ReplicaId::random();
        let program =
            Program { name: "kas", version: env!("CARGO_PKG_VERSION"), instance: replica.to_string() };
        let (tracer, exporter) = self.traces.map(|settings| settings.build(&program)).unzip();
        let trust_callers = config.observability.tracing.trust_callers;
        let has_tls = config.agent.kubernetes_api.listen.certificate_file.is_some();
        let scheme = if has_tls { "https" } else { "http" };
        let traces = tracer.map(|tracer| Traces { tracer, trust_callers, scheme });
        let (mut redis, mut own) = (None, None);
        let peer_tls = self.private.as_ref().and_then(PeerConfig::tls).cloned();
        let peer_secret = self.private.as_ref().and_then(PeerConfig::secret).cloned();
        let settings = config.peer_settings();
        let mut fleet =
            ReplicaContext::standalone(replica, Arc::new(MemoryStore::default()), settings.clone());
        if let (Some(setup), Some(listener)) = (self.private, &listeners.private) {
            let url = setup.url(listener.address());
            tracing::info!(%url, "address for other replicas");
            fleet = setup.apply_to(fleet, settings);
            fleet.replica.url = url.to_string();
            if let Some(settings) = self.redis {
                let replica = own.insert(fleet.replica.clone());
                let (urls, records) = (fleet.url_authenticator(), fleet.record_authenticator());
                let settings = RedisSettings { urls, records, ..settings };
                let (store, sync) = RedisStore::new(settings, replica.clone(), env!("CARGO_PKG_VERSION"));
                fleet.store = Arc::new(store.clone());
                redis = Some((store, sync));
            }
        }
        let gitlab = self.gitlab.as_ref().map(GitLabSetup::client);
        let issuer = config.api.as_ref().and_then(|api| api.listen.authentication_issuer.as_deref());
        let api_tokens =
            self.api_secret.as_ref().map(|file| ApiTokenVerifier::new(file.secret().clone(), issuer));
        let sources = ReplicaSources {
            identity: self.identity,
            issuers: self.issuers,
            gitlab,
            gitlab_login: self.gitlab.as_ref().and_then(GitLabSetup::login),
            gitaly_tls: self.gitlab.as_ref().and_then(GitLabSetup::tls),
            api_tokens: api_tokens.clone(),
            environments: self.environments,
            features: Vec::new(),
        };
        let mut app = App::of_replica(fleet, config, sources, traces, exporter, redis);
        app.callers.kill_switch.set_file(self.disabled);
        if let (Some((record, rules)), Some((store, _))) = (self.disabled_fleet, &app.redis) {
            kill_switch::fleet::accept(store, &app.callers.kill_switch, record, rules);
        }
        if let Some(AuditOutput(sink)) = self.audit {
            let observers = &app.callers.observers;
            let metrics = observers.metrics.audit.clone();
            observers.audit.get_or_init(|| AuditLog::start(sink, metrics, replica, &observers.features));
        }
        let peer_certificate = peer_tls.as_ref().map(MutualTls::certificate);
        app.credentials.certificates =
            self.certificates.iter().chain(peer_certificate).chain(&self.dial_certificate).cloned().collect();
        app.dial_certificate = self.dial_certificate;
        app.webhooks = self.webhooks;
        let gitlab_secret = self.gitlab.as_ref().map(GitLabSetup::secret).cloned();
        app.credentials.secrets =
            peer_secret.into_iter().chain(self.api_secret.clone()).chain(gitlab_secret).collect();
        app.credentials.gitlab = self.gitlab;
        app.credentials.peer_tls = peer_tls;
        app.reachability = own.map(|own| {
            let peers = app.callers.forwarder.peers.clone();
            ReachabilityProbe { client: peers, store: Arc::clone(&app.callers.forwarder.store), own }
        });
        app.api = api_tokens.map(|verifier| Arc::new(app.api_server(verifier)));
        Ok((app, listeners))
    }
}
