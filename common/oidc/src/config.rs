//! Section `oidc`: the issuers whose tokens (JWT) callers may use.

use std::{borrow::Cow, path::PathBuf, time::Duration};

use jsonwebtoken::Algorithm;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_saphyr::Spanned;

use settings::{AnyDuration, Network};

/// Section `oidc`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OidcConfig {
    /// The issuers. Without them no caller uses such tokens.
    pub issuers: Vec<IssuerConfig>,
}

/// One entry of `oidc.issuers`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerConfig {
    /// The name by which entries of the identity file refer to the issuer.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The URL of the issuer, exactly as in the claim `iss`.
    #[schemars(with = "String")]
    pub issuer: Spanned<String>,
    /// The values of the claim `aud` of which a token needs one.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub audiences: Spanned<Vec<String>>,
    /// The algorithms of signatures that are accepted.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<SigningAlgorithm>,
    /// The certificate authority of the issuer (PEM). Without it the authorities of the system are trusted.
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// The networks to which kas connects for this issuer. Without them, all but addresses with a special meaning.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub allowed_networks: Vec<Network>,
    /// The difference of clocks that is tolerated for `exp` and `nbf`.
    #[serde(default = "default_leeway", with = "Leeway")]
    pub leeway: Duration,
    /// The time for which streams (watches, exec, long bodies) continue after their token has expired; `off` for no end.
    #[serde(default)]
    pub stream_grace: StreamGrace,
    /// The claim with the name of the user.
    #[serde(default = "default_username_claim")]
    pub username_claim: String,
    /// The text before the name of each user. The default is the name of the issuer and a colon.
    #[schemars(with = "Option<String>")]
    pub username_prefix: Option<Spanned<String>>,
    /// The claim with the groups of the user. Without it users have no groups.
    pub groups_claim: Option<String>,
    /// The scopes for which `kas login` asks. The default is those of the claims that kas uses, as far as the issuer has them.
    #[schemars(with = "Option<Vec<String>>", inner(regex(pattern = r"^[!#-\[\]-~]+$")))]
    pub scopes: Option<Spanned<Vec<String>>>,
    /// The login of people to the web page at this issuer. Without it they do not log in there.
    pub web: Option<PageLoginConfig>,
    /// The text before the name of each group. The default is the name of the issuer and a colon.
    #[schemars(with = "Option<String>")]
    pub groups_prefix: Option<Spanned<String>>,
}

/// Section `oidc.issuers[].web`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PageLoginConfig {
    /// The id that the issuer knows for the page, one of `audiences`. The default is the first of them.
    #[schemars(with = "Option<String>")]
    pub client_id: Option<Spanned<String>>,
    /// The file with the secret of the client, if the issuer demands one. It is read at each login.
    #[schemars(with = "Option<PathBuf>")]
    pub client_secret_file: Option<Spanned<PathBuf>>,
}

/// The time for which streams continue after the expiration of their token, or `None` if they do not end because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGrace(pub Option<Duration>);

/// An algorithm with a public key. `none` and the HMACs (HS256) cannot be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningAlgorithm(Algorithm);

/// The longest tolerated difference of clocks.
const MAX_LEEWAY: Duration = Duration::from_secs(300);

/// The word for streams that do not end.
const OFF: &str = "off";

impl SigningAlgorithm {
    /// Returns the algorithm.
    pub fn algorithm(self) -> Algorithm {
        self.0
    }
}

/// The names of the algorithms.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

impl<'de> Deserialize<'de> for SigningAlgorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = ALGORITHMS.iter().find(|(name, _)| *name == word);
        found.map(|(_, algorithm)| Self(*algorithm)).ok_or_else(|| {
            D::Error::custom(format!(
                "{word:?} is none of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA"
            ))
        })
    }
}

impl JsonSchema for SigningAlgorithm {
    fn schema_name() -> Cow<'static, str> {
        "SigningAlgorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": ALGORITHMS.map(|(name, _)| name)})
    }
}

impl Default for StreamGrace {
    fn default() -> Self {
        Self(Some(Duration::from_secs(3600)))
    }
}

impl<'de> Deserialize<'de> for StreamGrace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let grace = (text != OFF).then(|| settings::duration::parse(&text)).transpose();
        grace.map(Self).map_err(|error| D::Error::custom(format!("{error}, or {OFF}")))
    }
}

/// Serializes the default for the schema.
impl Serialize for StreamGrace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(grace) => AnyDuration::serialize(&grace, serializer),
            None => serializer.serialize_str(OFF),
        }
    }
}

impl JsonSchema for StreamGrace {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "StreamGrace".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"const": OFF}, AnyDuration::json_schema(generator)]})
    }
}

/// A duration of at most [`MAX_LEEWAY`], for `#[serde(with)]`.
struct Leeway;

impl Leeway {
    fn serialize<S: Serializer>(leeway: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        AnyDuration::serialize(leeway, serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let leeway = AnyDuration::deserialize(deserializer)?;
        if leeway > MAX_LEEWAY {
            return Err(D::Error::custom(
                "the leeway must be at most 5m: set the clocks of both machines instead",
            ));
        }
        Ok(leeway)
    }
}

impl JsonSchema for Leeway {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Leeway".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        AnyDuration::json_schema(generator)
    }
}

fn default_algorithms() -> Vec<SigningAlgorithm> {
    [Algorithm::RS256, Algorithm::ES256].map(SigningAlgorithm).to_vec()
}

fn default_leeway() -> Duration {
    Duration::from_secs(30)
}

fn default_username_claim() -> String {
    "sub".to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use settings::parse;

    use crate::OidcConfig;

    /// Returns the grace of an issuer with this key, or the error.
    fn stream_grace(key: &str) -> Result<Option<u64>, String> {
        let issuer = format!("{{name: dex, issuer: 'https://dex.example.com', audiences: [kas], {key}}}");
        let text = format!("issuers: [{issuer}]\n");
        let config = parse::<OidcConfig>(Path::new("kas.yaml"), &text).map_err(|error| error.to_string())?;
        Ok(config.issuers[0].stream_grace.0.map(|grace| grace.as_secs()))
    }

    #[test]
    fn stream_grace_is_a_duration_or_off() {
        assert_eq!(stream_grace(""), Ok(Some(3600)));
        assert_eq!(stream_grace("stream_grace: 10m"), Ok(Some(600)));
        assert_eq!(stream_grace("stream_grace: 0s"), Ok(Some(0)));
        assert_eq!(stream_grace("stream_grace: 'off'"), Ok(None));
        for wrong in ["never", "'Off'", "-1s", "10"] {
            let error = stream_grace(&format!("stream_grace: {wrong}")).unwrap_err();
            assert!(error.starts_with("kas.yaml:1:") && error.contains("or off"), "{wrong}: {error}");
        }
    }
}
