//! Sections `agent.receptive` and `agent.receptive_agent`: the agents that kas dials.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{AnyDuration, ConfigError, Network, patterns::NETWORK};

use super::Config;

/// The shortest time between two lists of the agents that GitLab lets kas dial.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Section `agent.receptive`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct ReceptiveConfig {
    /// The networks to which kas may connect. An empty list allows all but special addresses, such as loopback.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// The certificate chain (PEM) with which kas authenticates to agentk.
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
}

/// Section `agent.receptive_agent`: the agents that GitLab lists for kas to dial.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReceptiveAgentConfig {
    /// The time between two lists, 10 s at least. Zero disables them.
    #[serde(with = "AnyDuration")]
    pub poll_interval: Duration,
}

impl Config {
    /// Returns an error if kas would read the list of agents from GitLab too often.
    pub(super) fn check_poll_interval(&self, file: &Path) -> Result<(), ConfigError> {
        let interval = self.agent.receptive_agent.poll_interval;
        if interval.is_zero() || interval >= MIN_POLL_INTERVAL {
            return Ok(());
        }
        let what = "the duration must be 10s or longer, or 0s: kas dials no agents of GitLab";
        Err(self.error(file, "agent.receptive_agent.poll_interval", what))
    }
}

#[cfg(test)]
mod tests {
    use settings::{KeyLocations, parse};

    use super::*;

    #[test]
    fn list_is_read_at_most_every_ten_seconds() {
        let file = Path::new("kas.yaml");
        let check = |interval: &str| {
            let text =
                format!("identity: {{file: i}}\nagent: {{receptive_agent: {{poll_interval: {interval}}}}}\n");
            let mut config: Config = parse(file, &text).unwrap();
            config.keys = KeyLocations::parse(&text);
            config.check_poll_interval(file).map_err(|error| error.to_string())
        };
        for interval in ["0s", "10s", "1m"] {
            assert_eq!(check(interval), Ok(()), "{interval}");
        }
        for interval in ["1ms", "9.9s"] {
            let error = check(interval).unwrap_err();
            assert!(error.starts_with("kas.yaml:2:"), "{error}");
            assert!(error.contains("agent.receptive_agent.poll_interval: the duration must be"), "{error}");
        }
    }
}
