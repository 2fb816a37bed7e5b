//! Section `gitlab`: the GitLab that knows the agents, the jobs and the users.

use std::path::PathBuf;

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{Rate, Within};

use crate::GitLabAddress;

/// Section `gitlab`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitLabConfig {
    /// The address of GitLab's internal API.
    #[schemars(with = "String", regex(pattern = "^(https?://.|unix:/)"))]
    pub address: GitLabAddress,
    /// The URL of GitLab for browsers and agents.
    #[serde(default, deserialize_with = "url")]
    #[schemars(with = "Option<String>", regex(pattern = "^(https?://.+)?$"))]
    pub external_url: Option<String>,
    /// The secret with which kas signs its requests: base64 of 32 bytes.
    #[schemars(with = "PathBuf")]
    pub authentication_secret_file: Spanned<PathBuf>,
    /// An authority (PEM) that is trusted in addition to those of the system.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// A token that sets the statuses of commits with manifests: scope `api`, role Developer.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub commit_status_token_file: Option<Spanned<PathBuf>>,
    /// A token that writes previews into merge requests: scope `api`, role Reporter.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub comment_token_file: Option<Spanned<PathBuf>>,
    /// The login of people to the web page at GitLab.
    #[serde(default)]
    pub login: Option<GitLabLoginConfig>,
    /// A token that reads how the jobs of deployments have ended, and the environments of groups: scope `read_api`, role Reporter.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub deployment_token_file: Option<Spanned<PathBuf>>,
    /// The limit of requests to GitLab.
    #[serde(default)]
    pub api_rate_limit: ApiRateLimit,
}

/// Section `gitlab.login`: the OAuth application that GitLab has for kas.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitLabLoginConfig {
    /// The id of the application, with the scope `read_api` and the redirect URI `https://<page>/web/v1/callback/gitlab`.
    #[schemars(with = "String", length(min = 1))]
    pub client_id: Spanned<String>,
    /// The secret of the application, if it is confidential.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub client_secret_file: Option<Spanned<PathBuf>>,
}

/// Section `gitlab.api_rate_limit`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiRateLimit {
    /// Requests per second.
    #[serde(with = "Rate")]
    pub refill_rate_per_second: u32,
    /// Requests at once after a quiet time.
    #[serde(with = "Within::<1, 100_000>")]
    pub bucket_size: u32,
}

impl GitLabConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let login = self.login.iter_mut().filter_map(|login| login.client_secret_file.as_mut());
        let optional = [
            &mut self.ca_certificate_file,
            &mut self.commit_status_token_file,
            &mut self.comment_token_file,
            &mut self.deployment_token_file,
        ];
        [&mut self.authentication_secret_file].into_iter().chain(optional.into_iter().flatten()).chain(login)
    }
}

impl Default for ApiRateLimit {
    fn default() -> Self {
        Self { refill_rate_per_second: 50, bucket_size: 250 }
    }
}

/// Deserializes a URL of the scheme http or https. Omnibus writes the key without a value if it has none.
fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let url = text.parse::<Uri>().ok().filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
    match url.as_ref().and_then(Uri::host) {
        Some(host) if !host.is_empty() => Ok(Some(text)),
        _ => Err(D::Error::custom(format!("{text:?} is not a URL such as https://gitlab.example.com"))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;
    use settings::parse;

    use super::GitLabConfig;

    #[derive(Debug, Deserialize)]
    struct File {
        gitlab: GitLabConfig,
    }

    #[test]
    fn external_url_may_be_empty() {
        for (value, expected) in [("", None), ("''", None), ("https://a", Some("https://a".to_owned()))] {
            let text = format!(
                "gitlab:\n  address: https://a\n  authentication_secret_file: s\n  external_url: {value}\n"
            );
            let config: File = parse(Path::new("kas.yaml"), &text).unwrap();
            assert_eq!(config.gitlab.external_url, expected, "{value:?}");
        }
    }

    #[test]
    fn invalid_section_is_refused_with_its_key() {
        for (section, expected) in [
            (
                "{address: gitlab, authentication_secret_file: s}",
                "gitlab.address: \"gitlab\" is not the address",
            ),
            ("{address: 'https://a'}", "gitlab: the key authentication_secret_file is missing"),
            (
                "{address: 'https://a', authentication_secret_file: s, external_url: a}",
                "gitlab.external_url: \"a\" is not a URL",
            ),
            (
                "{address: 'https://a', authentication_secret_file: s, login: {client_secret_file: x}}",
                "gitlab.login: the key client_id is missing",
            ),
            (
                "{address: 'https://a', authentication_secret_file: s, api_rate_limit: {bucket_size: 0}}",
                "gitlab.api_rate_limit.bucket_size: 0 is not between",
            ),
        ] {
            let text = format!("gitlab: {section}\n");
            let error = parse::<File>(Path::new("kas.yaml"), &text).unwrap_err().to_string();
            assert!(error.starts_with("kas.yaml:1:") && error.contains(expected), "{error}");
        }
    }
}
