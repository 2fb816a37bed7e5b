//! Section `gitaly`: the Git servers of GitLab.

use schemars::JsonSchema;
use serde::Deserialize;

use settings::{Rate, Within};

/// Section `gitaly`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitalyConfig {
    /// The limit of calls to all servers.
    pub global_api_rate_limit: GlobalRateLimit,
    /// The limit of calls to one server.
    pub per_server_api_rate_limit: ServerRateLimit,
}

/// Section `gitaly.global_api_rate_limit`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GlobalRateLimit {
    /// Calls per second.
    #[serde(with = "Rate")]
    pub refill_rate_per_second: u32,
    /// Calls at once after a quiet time.
    #[serde(with = "Within::<1, 100_000>")]
    pub bucket_size: u32,
}

/// Section `gitaly.per_server_api_rate_limit`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerRateLimit {
    /// Calls per second.
    #[serde(with = "Rate")]
    pub refill_rate_per_second: u32,
    /// Calls at once after a quiet time.
    #[serde(with = "Within::<1, 100_000>")]
    pub bucket_size: u32,
}

impl Default for GlobalRateLimit {
    fn default() -> Self {
        Self { refill_rate_per_second: 30, bucket_size: 70 }
    }
}

impl Default for ServerRateLimit {
    fn default() -> Self {
        Self { refill_rate_per_second: 15, bucket_size: 40 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;
    use settings::parse;

    use super::GitalyConfig;

    #[derive(Debug, Deserialize)]
    struct File {
        gitaly: GitalyConfig,
    }

    #[test]
    fn each_limit_has_its_own_defaults() {
        let text = "gitaly: {global_api_rate_limit: {bucket_size: 7}}\n";
        let gitaly = parse::<File>(Path::new("kas.yaml"), text).unwrap().gitaly;
        let limit = gitaly.global_api_rate_limit;
        assert_eq!((limit.refill_rate_per_second, limit.bucket_size), (30, 7));
        let limit = gitaly.per_server_api_rate_limit;
        assert_eq!((limit.refill_rate_per_second, limit.bucket_size), (15, 40));
    }

    #[test]
    fn limit_of_zero_is_refused() {
        let text = "gitaly: {per_server_api_rate_limit: {bucket_size: 0}}\n";
        let error = parse::<File>(Path::new("kas.yaml"), text).unwrap_err().to_string();
        assert!(error.contains("gitaly.per_server_api_rate_limit.bucket_size: 0 is not between"), "{error}");
    }
}
