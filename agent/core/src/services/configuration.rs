//! The service `configuration`: kas sends the configuration of the agent, and agentk applies it while it runs.
//!
//! The configuration lives as long as the process, so that it outlives every tunnel. All tunnels share it.

mod order;

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use process::logs::LogFilter;
use proto::{
    Reason,
    agent_configuration::{
        AppliedKeys, CONFIGURATION_PATH, ConfigurationResponse, ConfigurationUpdate, LogLevel, MAX_UPDATE,
        ProvisionSettings,
    },
};
use tokio::time::Instant;
use tracing_subscriber::EnvFilter;
use tunnel::Body;

use self::order::UpdateOrder;
use super::{RequestHandler, ServiceError, response::json_response};
use crate::{metrics::AgentMetrics, policy::ScopeEnforcer};

/// Applies a part of the agent's configuration. Returns a sentence for each key that is refused.
pub type Section = Box<dyn Fn(&SectionUpdate<'_>) -> Vec<String> + Send + Sync>;

/// A new configuration of the agent, as sections read it.
pub struct SectionUpdate<'a> {
    /// The keys of the configuration.
    pub keys: &'a AppliedKeys,
    /// The managed resources; `None` from a kas that does not know them.
    pub provision: Option<&'a ProvisionSettings>,
    /// The places of keys in the file.
    pub places: &'a BTreeMap<String, String>,
}

/// Applies the configuration that kas sends. Clones share their state.
#[derive(Clone)]
pub struct ConfigurationService {
    inner: Arc<Inner>,
    /// The parts of the configuration that features apply.
    sections: Arc<[Section]>,
}

#[derive(Debug)]
struct Inner {
    scope: Arc<ScopeEnforcer>,
    log: Option<LogLevelSetting>,
    metrics: AgentMetrics,
    state: Mutex<ConfigurationState>,
}

/// The log of this process, whose level a configuration may change.
#[derive(Clone, Debug)]
pub struct LogLevelSetting {
    /// Replaces the filter.
    pub filter: LogFilter,
    /// The filter of the command line, which applies unless the configuration has a level.
    pub default: String,
    /// Returns the filter for a level. The program has the list of the crates that log with it.
    pub of_level: fn(&str) -> String,
}

#[derive(Debug, Default)]
struct ConfigurationState {
    order: UpdateOrder,
    version: Option<String>,
    error: Option<String>,
    level: Option<LogLevel>,
    /// The keys that are refused, each with its place.
    refused: Vec<String>,
}

impl ConfigurationService {
    /// Returns a service that sets this scope and, if there is one, the level of this log.
    pub fn new(scope: Arc<ScopeEnforcer>, log: Option<LogLevelSetting>, metrics: AgentMetrics) -> Self {
        let inner = Arc::new(Inner { scope, log, metrics, state: Mutex::default() });
        Self { inner, sections: Arc::new([]) }
    }

    /// Returns a service that sets sections of features, too.
    #[must_use]
    pub fn with_sections(mut self, sections: impl IntoIterator<Item = Section>) -> Self {
        self.sections = sections.into_iter().collect();
        self
    }

    /// Applies an update, unless a newer one was applied before. Returns the keys that are refused.
    ///
    /// # Errors
    ///
    /// A key has an invalid value. The configuration before stays in force.
    fn apply(&self, update: ConfigurationUpdate) -> Result<ConfigurationResponse, String> {
        let keys = update.configuration.as_ref().map(AppliedKeys::new).transpose();
        let keys = keys.map_err(|invalid| invalid.to_string())?;
        let Inner { scope, log, metrics, state } = &*self.inner;
        let mut state = state.lock();
        if !state.order.admit(order::age(&update, SystemTime::now()), Instant::now()) {
            // The other tunnels bring the version that is applied a second time.
            let ignored = update.version != state.version;
            if ignored {
                tracing::info!(
                    version = update.version,
                    applied = state.version,
                    "configuration ignored: another replica of kas has read it later"
                );
            }
            return Ok(ConfigurationResponse { refused: state.refused.clone(), ignored });
        }
        metrics.set_configuration_error(update.error.is_some());
        if update.error != state.error {
            match &update.error {
                Some(error) => tracing::warn!(error, "the configuration of this agent is not used"),
                None => tracing::info!("the configuration of this agent is valid again"),
            }
            state.error = update.error;
        }
        let Some(keys) = keys else {
            return Ok(ConfigurationResponse { refused: state.refused.clone(), ignored: false });
        };
        scope.set(keys.scope.clone());
        let section =
            SectionUpdate { keys: &keys, provision: update.provision.as_ref(), places: &update.places };
        let refused: Vec<String> = self.sections.iter().flat_map(|apply| apply(&section)).collect();
        if refused != state.refused {
            for refused in &refused {
                tracing::warn!(refused, "a key of the configuration is refused");
            }
            state.refused = refused;
        }
        if keys.log_level != state.level {
            if let Some(log) = log {
                log.set(keys.log_level);
            }
            state.level = keys.log_level;
        }
        if update.version != state.version {
            let version = update.version.as_deref().unwrap_or_default();
            tracing::info!(version, "configuration of this agent applied");
            state.version = update.version;
        }
        Ok(ConfigurationResponse { refused: state.refused.clone(), ignored: false })
    }
}

impl std::fmt::Debug for ConfigurationService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigurationService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl LogLevelSetting {
    fn set(&self, level: Option<LogLevel>) {
        let filter = match level {
            Some(level) => (self.of_level)(level.as_str()),
            None => self.default.clone(),
        };
        let level = level.map_or("that of the command line", LogLevel::as_str);
        tracing::info!(level, "log level set by the configuration of this agent");
        self.filter.set(EnvFilter::new(filter));
    }
}

impl RequestHandler for ConfigurationService {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        if request.uri().path() != CONFIGURATION_PATH {
            let what = format!("agentk has no path {} for configurations", request.uri().path());
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        if request.method() != Method::PUT {
            let error = ServiceError::new(Reason::MethodNotAllowed, "the method of this path is PUT");
            return Err(error.with_allow("PUT"));
        }
        let refused = |what: String| {
            self.inner.metrics.record_configuration_update("failed");
            tracing::warn!(error = what, "configuration of kas refused");
            ServiceError::new(Reason::BadRequest, format!("invalid configuration: {what}"))
        };
        let body = Limited::new(request.into_body(), MAX_UPDATE).collect().await;
        let body = body.map_err(|error| refused(error.to_string()))?.to_bytes();
        let update = serde_json::from_slice(&body).map_err(|error| refused(error.to_string()))?;
        let result = self.apply(update).map_err(refused)?;
        self.inner.metrics.record_configuration_update(if result.ignored { "ignored" } else { "ok" });
        if result != ConfigurationResponse::default() {
            return Ok(json_response(&result));
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;

    struct Fixture {
        service: ConfigurationService,
        scope: Arc<ScopeEnforcer>,
    }

    impl Fixture {
        fn new() -> Self {
            let scope = Arc::new(ScopeEnforcer::new(None, AgentMetrics::default()));
            let service = ConfigurationService::new(Arc::clone(&scope), None, AgentMetrics::default());
            Self { service, scope }
        }

        /// Returns the status of the response to an update.
        async fn put(&self, update: &Value) -> Result<u16, ServiceError> {
            let body = Body::from(Bytes::from(update.to_string()));
            let request = Request::put(CONFIGURATION_PATH).body(body).unwrap();
            Ok(self.service.handle(request).await?.status().as_u16())
        }

        fn allows(&self, path: &str) -> bool {
            self.scope.check(&Request::get(path).body(()).unwrap()).is_ok()
        }
    }

    /// An update that kas has read so many milliseconds after another point in time, which is `MAX` ago.
    fn update(read: u64, configuration: &Value) -> Value {
        let version = read.to_string();
        json!({"observed": 0, "age": MAX - read, "version": version, "configuration": configuration, "error": null})
    }

    const PODS: &str = "/api/v1/namespaces/b/pods";
    const MAX: u64 = 1000;

    #[tokio::test(start_paused = true)]
    async fn scope_applies_until_an_update_has_none() {
        let agent = Fixture::new();
        assert!(agent.allows(PODS));
        assert_eq!(agent.put(&update(1, &json!({"scope": {"namespaces": ["a"]}}))).await.unwrap(), 204);
        assert!(!agent.allows(PODS));
        let only_error =
            json!({"observed": 0, "age": MAX - 2, "version": null, "configuration": null, "error": "bad"});
        agent.put(&only_error).await.unwrap();
        assert!(!agent.allows(PODS), "a kas without a valid configuration changes nothing");
        agent.put(&update(3, &json!({}))).await.unwrap();
        assert!(agent.allows(PODS));
    }

    #[tokio::test(start_paused = true)]
    async fn update_that_was_read_before_the_applied_one_is_ignored() {
        let agent = Fixture::new();
        agent.put(&update(2, &json!({"scope": {"namespaces": ["a"]}}))).await.unwrap();
        assert_eq!(
            agent.put(&update(1, &json!({}))).await.unwrap(),
            200,
            "the response says that it is ignored"
        );
        assert!(!agent.allows(PODS));
        assert_eq!(agent.service.inner.metrics.configuration_updates("ignored"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn clock_of_one_kas_does_not_freeze_the_configuration() {
        let agent = Fixture::new();
        let of_old_kas = |observed: u64, namespace: &str| {
            let configuration = json!({"scope": {"namespaces": [namespace]}});
            json!({"observed": observed, "version": "1", "configuration": configuration, "error": null})
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
        for ahead in [now + 3_600_000, 1 << 62, u64::MAX] {
            agent.put(&of_old_kas(ahead, "a")).await.unwrap();
            assert!(!agent.allows(PODS), "{ahead}");
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            let of_another = json!({
                "observed": now, "age": 10, "version": "2", "error": null,
                "configuration": {"scope": {"namespaces": ["b"]}},
            });
            assert_eq!(agent.put(&of_another).await.unwrap(), 204);
            assert!(agent.allows(PODS), "after an update of the time {ahead}");
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        // The clock of a replica may also be an hour behind.
        let behind = json!({
            "observed": now - 3_600_000, "age": 5, "version": "3", "error": null,
            "configuration": {"scope": {"namespaces": ["a"]}},
        });
        assert_eq!(agent.put(&behind).await.unwrap(), 204);
        assert!(!agent.allows(PODS));
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_update_changes_nothing() {
        let agent = Fixture::new();
        agent.put(&update(1, &json!({"scope": {"namespaces": ["a"]}}))).await.unwrap();
        for bad in [
            update(2, &json!({"scope": {"namespaces": []}})),
            update(2, &json!({"scope": {"namespaces": ["b"], "verbs": ["get"]}})),
            update(2, &json!({"observability": {"logging": {"level": "loud"}}})),
            json!([]),
        ] {
            let error = agent.put(&bad).await.unwrap_err();
            assert_eq!(error.reason, Reason::BadRequest, "{bad}");
        }
        assert!(!agent.allows(PODS));
        let huge = update(2, &json!({"gitops": "x".repeat(MAX_UPDATE)}));
        assert!(agent.put(&huge).await.is_err());
    }
}
