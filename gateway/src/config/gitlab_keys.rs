//! Keys of GitLab's kas that do not exist here. Most of them have no meaning, and are ignored with one warning. A key that asks
//! for something that kas would silently not do is refused. `docs/gitlab.md` lists both.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use settings::ConfigError;

use super::Config;
use kas_core::gitlab_key::GitLabKey;

/// Section `config` of GitLab's kas. Omnibus always writes it, mostly without a key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ExternalConfig {
    #[schemars(skip)]
    command: GitLabKey,
}

impl Config {
    /// Returns all keys that are ignored, and whether the file has them.
    fn ignored(&self) -> [(&'static str, GitLabKey); 21] {
        let (agent, observability) = (&self.agent, &self.observability);
        let api = self.api.as_ref().map(|api| &api.listen);
        let private = self.private_api.as_ref().map(|api| &api.listen);
        let redis = self.redis.as_ref();
        [
            ("agent.gitops.max_number_of_paths", agent.gitops.max_number_of_paths),
            ("agent.gitops.project_info_cache_error_ttl", agent.gitops.project_info_cache_error_ttl),
            ("agent.gitops.project_info_cache_ttl", agent.gitops.project_info_cache_ttl),
            (
                "agent.kubernetes_api.websocket_token_secret_file",
                agent.kubernetes_api.websocket_token_secret_file,
            ),
            ("agent.listen.listen_grace_period", agent.listen.listen_grace_period),
            ("agent.redis_conn_info_gc", agent.redis_conn_info_gc),
            ("agent.redis_conn_info_refresh", agent.redis_conn_info_refresh),
            ("agent.redis_conn_info_ttl", agent.redis_conn_info_ttl),
            ("api.listen.listen_grace_period", api.map(|api| api.listen_grace_period).unwrap_or_default()),
            ("api.listen.max_connection_age", api.map(|api| api.max_connection_age).unwrap_or_default()),
            ("autoflow", self.autoflow),
            ("events_platform", self.events_platform),
            ("observability.google_profiler", observability.google_profiler),
            ("observability.logging.grpc_level", observability.logging.grpc_level),
            ("observability.sentry", observability.sentry),
            (
                "private_api.listen.max_connection_age",
                private.map(|api| api.max_connection_age).unwrap_or_default(),
            ),
            ("redis.idle_timeout", redis.map(|redis| redis.idle_timeout).unwrap_or_default()),
            ("redis.pool_size", redis.map(|redis| redis.pool_size).unwrap_or_default()),
            ("redis.read_timeout", redis.map(|redis| redis.read_timeout).unwrap_or_default()),
            ("redis.write_timeout", redis.map(|redis| redis.write_timeout).unwrap_or_default()),
            ("workspaces", self.workspaces),
        ]
    }

    /// Returns all keys that are refused, whether the file has them, and the reason.
    fn refused(&self) -> [(&'static str, bool, &'static str); 8] {
        const NO_TLS: &str = "this listener does not use TLS: remove the key, and let it listen on localhost or restrict its \
                              clients with allowed_networks";
        let observability = &self.observability;
        let redis = self.redis.as_ref();
        [
            (
                "agent.listen.websocket",
                self.agent.listen.enabled_protocols().is_empty(),
                "without WebSocket, only GitLab's agentk with grpcs:// can connect: set it to true, or add h2 to \
                 agent.listen.protocols",
            ),
            (
                "config.command",
                self.config.as_ref().is_some_and(|config| config.command.is_set()),
                "kas runs no command for its configuration, and would lose the keys that this one prints: write them into this \
                 file",
            ),
            ("observability.listen.certificate_file", observability.listen.certificate_file.is_set(), NO_TLS),
            ("observability.listen.key_file", observability.listen.key_file.is_set(), NO_TLS),
            (
                "observability.liveness_probe.url_path",
                observability.liveness_probe.differs_from("/liveness"),
                "the path is always /liveness: remove the key, and use this path in the probe",
            ),
            (
                "observability.prometheus.url_path",
                observability.prometheus.differs_from("/metrics"),
                "the path is always /metrics: remove the key, and let Prometheus scrape this path",
            ),
            (
                "observability.readiness_probe.url_path",
                observability.readiness_probe.differs_from("/readiness"),
                "the path is always /readiness: remove the key, and use this path in the probe",
            ),
            (
                "redis.sentinel.tls",
                redis.is_some_and(|redis| !redis.sentinel_has_tls_of_servers()),
                "the section redis.tls is for the servers and the Sentinels, and differs: write the same keys there, or remove \
                 this section",
            ),
        ]
    }

    /// Returns an error for all keys that ask for something that kas does not do.
    pub(super) fn check_gitlab_keys(&self, file: &Path) -> Result<(), ConfigError> {
        let refused = self.refused().into_iter().filter(|(_, is_set, _)| *is_set);
        ConfigError::check_all(refused.map(|(key, _, reason)| Err(self.error(file, key, reason))))
    }

    /// Returns the keys of the file that are ignored, with their lines.
    pub fn ignored_keys(&self) -> Option<String> {
        let keys = self.ignored().into_iter().filter(|(_, key)| key.is_set());
        let keys: Vec<String> = keys
            .map(|(key, _)| match self.keys.locate(key) {
                Some((line, _)) => format!("{key} (line {line})"),
                None => key.to_owned(),
            })
            .collect();
        (!keys.is_empty()).then(|| keys.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use settings::{KeyLocations, parse};

    use super::*;

    const OMNIBUS: &str = include_str!("../../tests/command_line/gitlab/omnibus.yaml");
    const CHART: &str = include_str!("../../tests/command_line/gitlab/chart.yaml");
    const VERSION_16: &str = include_str!("../../tests/command_line/gitlab/version-16.yaml");

    fn read(text: &str) -> Result<Config, String> {
        let file = Path::new("kas.yaml");
        let mut config: Config = parse(file, text).map_err(|error| error.to_string())?;
        config.keys = KeyLocations::parse(text);
        config.check_gitlab_keys(file).map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Returns the keys in the rows of a section of docs/gitlab.md.
    fn documented(heading: &str) -> Vec<&'static str> {
        let text = include_str!("../../../docs/gitlab.md");
        let (_, section) = text.split_once(heading).unwrap();
        let section = section.split("\n#").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| row.split('`').next().unwrap()).collect()
    }

    /// Returns a section that sets one key.
    fn with_key(key: &str, value: &str) -> String {
        let required = if key.starts_with("api.") { ", authentication_secret_file: s" } else { "" };
        let opened = key.replace('.', ": {");
        format!(
            "identity: {{file: i}}\n{opened}: {value}{required}{}\n",
            "}".repeat(key.matches('.').count())
        )
    }

    #[test]
    fn documented_keys_are_those_of_the_code() {
        let config = read("identity: {file: i}\n").unwrap();
        assert_eq!(documented("### Ignored keys\n"), config.ignored().map(|(key, _)| key));
        let refused = documented("### Refused keys\n");
        for (key, ..) in config.refused() {
            assert!(refused.contains(&key), "docs/gitlab.md does not have {key}");
        }
    }

    #[test]
    fn each_ignored_key_is_accepted_with_any_value_and_named() {
        let none = read("identity: {file: i}\n").unwrap();
        assert_eq!(none.ignored_keys(), None);
        for (key, _) in none.ignored() {
            for value in ["{enabled: true, listen: {address: ':8160'}}", "30s", "[a, b]", "null"] {
                let config = read(&with_key(key, value)).unwrap();
                assert_eq!(config.ignored_keys().unwrap(), format!("{key} (line 2)"), "{value}");
            }
        }
    }

    #[test]
    fn each_refused_key_is_an_error_with_its_line_and_a_remedy() {
        let values = |key: &str| match key {
            "agent.listen.websocket" => "false, protocols: [ws-tunnel]",
            "redis.sentinel.tls" => "{enabled: true}",
            _ => "/some/path",
        };
        for (key, _, reason) in read("identity: {file: i}\n").unwrap().refused() {
            let mut text = with_key(key, values(key));
            if key.starts_with("redis.") {
                text = text.replace("tls:", "master_name: m, addresses: ['a:1'], tls:");
            }
            let error = read(&text).unwrap_err();
            assert!(
                error.starts_with("kas.yaml:2:") && error.contains(&format!(" {key}: {reason}")),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_with_the_meaning_of_kas_are_accepted() {
        for text in [
            "agent: {listen: {websocket: true}}",
            "agent: {listen: {websocket: false}}",
            "config:",
            "config: {}",
            "observability: {prometheus: {url_path: /metrics}, liveness_probe: {url_path: /liveness}}",
            "observability: {readiness_probe: {url_path: /readiness}}",
            "redis: {sentinel: {master_name: m, addresses: ['a:1'], tls: {enabled: false}}}",
            "redis: {sentinel: {master_name: m, addresses: ['a:1'], tls: {enabled: true}}, tls: {enabled: true}}",
        ] {
            let config = read(&format!("identity: {{file: i}}\n{text}\n")).unwrap();
            assert_eq!(config.ignored_keys(), None, "{text}");
        }
    }

    #[test]
    fn sentinel_without_the_authority_of_the_servers_is_refused() {
        let text = "identity: {file: i}\nredis:\n  sentinel: {master_name: m, addresses: ['a:1'], tls: {enabled: true, \
                    ca_certificate_file: a}}\n  tls: {enabled: true}\n";
        let error = read(text).unwrap_err();
        assert!(error.starts_with("kas.yaml:3:") && error.contains("redis.sentinel.tls: "), "{error}");
        assert!(
            read(&text.replace("tls: {enabled: true}", "tls: {enabled: true, ca_certificate_file: a}"))
                .is_ok()
        );
    }

    #[test]
    fn key_that_gitlab_does_not_have_is_still_an_error() {
        for (text, expected) in [
            (
                OMNIBUS.replace("grpc_level:", "grpc_levels:"),
                "observability.logging.grpc_levels: unknown field",
            ),
            (OMNIBUS.replace("workspaces:", "workspace:"), "workspace: unknown field"),
            (
                CHART.replace("url_path_prefix:", "url_path_prefixes:"),
                "kubernetes_api.url_path_prefixes: unknown field",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(expected) && error.contains("expected one of"), "{error}");
        }
    }

    #[test]
    fn files_of_both_packages_and_of_version_16_are_accepted() {
        for text in [OMNIBUS, CHART, VERSION_16] {
            read(text).unwrap();
        }
    }

    #[test]
    fn all_refused_keys_are_named_at_once() {
        let text = "identity: {file: i}\nobservability:\n  listen: {certificate_file: a, key_file: b}\n  prometheus: {url_path: /m}\n";
        let error = read(text).unwrap_err();
        assert_eq!(error.lines().count(), 3, "{error}");
    }
}
