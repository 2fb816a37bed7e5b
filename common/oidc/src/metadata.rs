//! The discovery document of an issuer (OpenID Connect Discovery 1.0, RFC 8414).

use serde::Deserialize;

use super::{DocumentSource, EndpointUrl, FetchError};

/// The path of the document, below the URL of the issuer.
const PATH: &str = "/.well-known/openid-configuration";

/// The endpoints of an issuer. The document has more fields, which kas does not use.
#[derive(Clone, Debug, Deserialize)]
pub struct ProviderMetadata {
    issuer: String,
    /// The URL of the keys that sign tokens.
    pub jwks_uri: EndpointUrl,
    /// The web page on which a person logs in.
    pub authorization_endpoint: Option<EndpointUrl>,
    /// The endpoint that issues tokens.
    pub token_endpoint: Option<EndpointUrl>,
    /// The endpoint that starts a login on another device (RFC 8628).
    pub device_authorization_endpoint: Option<EndpointUrl>,
    /// The scopes that the issuer has, if it publishes them.
    pub scopes_supported: Option<Vec<String>>,
    /// The redirects of the issuer name it in `iss` (RFC 9207).
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
}

impl ProviderMetadata {
    /// Fetches the document of the issuer with this URL.
    ///
    /// # Errors
    ///
    /// The document cannot be fetched, is not valid, or is that of another issuer.
    pub async fn fetch(source: &dyn DocumentSource, issuer: &str) -> Result<Self, FetchError> {
        let url = issuer.parse::<EndpointUrl>().and_then(|url| url.join(PATH));
        let url = url.map_err(|error| FetchError::invalid("the URL of the issuer", &error))?;
        let body = source.get(&url).await?;
        Self::parse(&body, issuer)
    }

    /// Parses the document of the issuer with this URL.
    ///
    /// # Errors
    ///
    /// The document is not valid, or is that of another issuer.
    pub fn parse(body: &[u8], issuer: &str) -> Result<Self, FetchError> {
        let metadata: Self = serde_json::from_slice(body)
            .map_err(|error| FetchError::invalid("the discovery document", &error))?;
        // Section 4.3: otherwise one issuer could pass off the keys of another as its own.
        if metadata.issuer != issuer {
            let found: String = metadata.issuer.chars().filter(|c| !c.is_control()).take(200).collect();
            let what =
                format!("its issuer is {found:?} and not {issuer:?}, which must be equal byte by byte");
            return Err(FetchError::invalid("the discovery document", &what));
        }
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_must_be_of_the_issuer_and_safe() {
        let parse = |text: &str| {
            ProviderMetadata::parse(text.as_bytes(), "https://a.example").map_err(|error| error.to_string())
        };
        let good = r#"{"issuer": "https://a.example", "jwks_uri": "https://keys.example/jwks", "x": [1]}"#;
        assert_eq!(parse(good).unwrap().jwks_uri.to_string(), "https://keys.example/jwks");
        for (document, expected) in [
            (good.replace("a.example\"", "a.example/\""), "must be equal byte by byte"),
            (good.replace("https://keys", "http://keys"), "must be https"),
            (good.replace("https://keys.example/jwks", "file:///etc/passwd"), "is not a URL"),
            ("<html>".to_owned(), "the discovery document is not valid"),
            ("{}".to_owned(), "missing field"),
        ] {
            let error = parse(&document).unwrap_err();
            assert!(error.contains(expected), "{document}: {error}");
        }
    }
}
