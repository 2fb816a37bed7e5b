//! Metrics of tokens and issuers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::TokenError;

/// The handles of the metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct OidcMetrics {
    tokens: Family<TokenLabels, Counter>,
    fetches: Family<FetchLabels, Counter>,
    keys: Family<IssuerLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    issuer: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    issuer: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IssuerLabel {
    issuer: String,
}

impl OidcMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "OIDC tokens that were verified, without the requests whose token was cached, and refused ones, by result";
        registry.register("kas_oidc_tokens", help, self.tokens.clone());
        registry.register(
            "kas_oidc_key_fetches",
            "Attempts to fetch the keys of an issuer",
            self.fetches.clone(),
        );
        let help = "1 if kas has keys of the issuer that are not too old, else 0";
        registry.register("kas_oidc_keys_usable", help, self.keys.clone());
    }

    /// Counts a token that was verified, or refused for a reason.
    pub fn count_token(&self, issuer: &str, error: Option<TokenError>) {
        let result = error.map_or("accepted", TokenError::class);
        self.tokens.get_or_create(&TokenLabels { issuer: issuer.to_owned(), result }).inc();
    }

    /// Counts an attempt to fetch keys, and records whether there are usable ones after it.
    pub(super) fn record_fetch(&self, issuer: &str, fetched: bool, usable: bool) {
        let result = if fetched { "success" } else { "failure" };
        self.fetches.get_or_create(&FetchLabels { issuer: issuer.to_owned(), result }).inc();
        self.keys.get_or_create(&IssuerLabel { issuer: issuer.to_owned() }).set(usable.into());
    }
}
