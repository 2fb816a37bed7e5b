//! The token endpoint of an issuer (OAuth 2.0, RFC 6749).

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::StatusCode;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use url::form_urlencoded::Serializer;

use super::{DocumentSource, EndpointUrl, FetchError, ProviderMetadata, UnverifiedToken};

/// The lifetime of an access token about which the server says nothing, in seconds (RFC 6749 section 5.1).
const DEFAULT_LIFETIME: u64 = 3600;

/// A client of one issuer.
#[derive(Clone, Debug)]
pub struct OauthClient {
    source: Arc<dyn DocumentSource>,
    /// The URL of the issuer.
    pub issuer: String,
    /// The id that the issuer knows for the client.
    pub client_id: String,
    secret: Option<SecretString>,
    token_endpoint: EndpointUrl,
    kind: RequestedToken,
    /// The redirects of the issuer name it in `iss` (RFC 9207).
    pub requires_iss: bool,
}

/// The token of an issuer that kas gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedToken {
    /// The ID token.
    Id,
    /// The access token, which must be a JWT.
    Access,
    /// The access token, which kas does not read.
    Opaque,
}

/// The tokens of a session.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The token for kas.
    pub token: SecretString,
    /// The time at which it expires, in seconds since 1970.
    pub expires: u64,
    /// The token with which the client gets further tokens.
    pub refresh_token: Option<SecretString>,
}

/// The reason for which there is no token.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The issuer does not respond. Another attempt may succeed.
    #[error(transparent)]
    Unavailable(#[from] FetchError),
    /// The issuer refused, with an error code of RFC 6749 section 5.2 or RFC 8628 section 3.5.
    #[error("the issuer refused the login: {0}")]
    Refused(OauthError),
    /// The login failed on this machine, or the response of the issuer is not valid.
    #[error("{0}")]
    Failed(String),
}

/// The error response of an issuer.
#[derive(Clone, Debug, Deserialize)]
pub struct OauthError {
    /// The error code.
    pub error: String,
    error_description: Option<String>,
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<SecretString>,
    access_token: Option<SecretString>,
    refresh_token: Option<SecretString>,
    /// The lifetime of the access token in seconds.
    expires_in: Option<u64>,
}

impl Tokens {
    /// Returns whether the token is still valid at a time since 1970.
    pub fn is_valid(&self, at: Duration) -> bool {
        at.as_secs() < self.expires
    }

    /// Returns those of these claims that the token does not have.
    pub fn missing<'a>(&self, claims: &'a [String]) -> Vec<&'a str> {
        let token = UnverifiedToken::parse(self.token.expose_secret()).ok().flatten();
        let has = |claim: &str| token.as_ref().is_some_and(|token| token.has_claim(claim));
        claims.iter().map(|claim| &**claim).filter(|claim| !has(claim)).collect()
    }
}

impl OauthClient {
    /// Creates a client of the issuer with this metadata. Returns `None` if it has no token endpoint: nobody can log in there.
    pub fn new(
        source: Arc<dyn DocumentSource>,
        issuer: String,
        client_id: String,
        secret: Option<SecretString>,
        metadata: &ProviderMetadata,
        kind: RequestedToken,
    ) -> Option<Self> {
        let token_endpoint = metadata.token_endpoint.clone()?;
        let requires_iss = metadata.authorization_response_iss_parameter_supported;
        Some(Self { source, issuer, client_id, secret, token_endpoint, kind, requires_iss })
    }

    /// Creates a client of a server whose access tokens only the server reads.
    pub fn of_opaque_tokens(
        source: Arc<dyn DocumentSource>,
        issuer: String,
        client_id: String,
        secret: Option<SecretString>,
        token_endpoint: EndpointUrl,
    ) -> Self {
        let kind = RequestedToken::Opaque;
        Self { source, issuer, client_id, secret, token_endpoint, kind, requires_iss: false }
    }

    /// Exchanges a refresh token for new tokens.
    ///
    /// # Errors
    ///
    /// The issuer refuses, or does not respond.
    pub async fn refresh(&self, token: &SecretString) -> Result<Tokens, LoginError> {
        let parameters = [("grant_type", "refresh_token"), ("refresh_token", token.expose_secret())];
        let mut tokens = self.request_tokens(&parameters, None).await?;
        // RFC 6749 section 6: without a new one, the old refresh token stays valid.
        tokens.refresh_token.get_or_insert_with(|| token.clone());
        Ok(tokens)
    }

    /// Requests tokens. With a nonce, the ID token must have it.
    ///
    /// # Errors
    ///
    /// The issuer refuses, does not respond, or sends another token.
    pub async fn request_tokens(
        &self,
        parameters: &[(&str, &str)],
        nonce: Option<&str>,
    ) -> Result<Tokens, LoginError> {
        let body = self.post(&self.token_endpoint, parameters).await?;
        let invalid = |what: &str| LoginError::Failed(format!("{}: {what}", self.token_endpoint));
        // The text of the error would have a part of the token.
        let response: TokenResponse =
            serde_json::from_slice(&body).map_err(|_| invalid("the response has no tokens"))?;
        let token = match self.kind {
            RequestedToken::Id => response
                .id_token
                .ok_or_else(|| invalid("the response has no id_token: add the scope openid"))?,
            RequestedToken::Access | RequestedToken::Opaque => {
                response.access_token.ok_or_else(|| invalid("the response has no access_token"))?
            }
        };
        if self.kind == RequestedToken::Opaque {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let expires = now.as_secs().saturating_add(response.expires_in.unwrap_or(DEFAULT_LIFETIME));
            return Ok(Tokens { token, expires, refresh_token: response.refresh_token });
        }
        let parsed = UnverifiedToken::parse(token.expose_secret()).ok().flatten();
        let parsed = parsed.ok_or_else(|| invalid("the token is not a JWT, so that kas cannot verify it"))?;
        if parsed.issuer() != Some(&self.issuer) {
            return Err(invalid("the token is that of another issuer (iss)"));
        }
        if self.kind == RequestedToken::Id && nonce.is_some() && parsed.claim("nonce") != nonce {
            return Err(invalid("the token is that of another login (nonce)"));
        }
        let expires = parsed.expires().ok_or_else(|| invalid("the token has no expiration (exp)"))?;
        drop(parsed);
        Ok(Tokens { token, expires, refresh_token: response.refresh_token })
    }

    /// Sends a form with the identification of the client, and returns the body of a successful response.
    ///
    /// # Errors
    ///
    /// The issuer refuses, or does not respond.
    pub async fn post(
        &self,
        endpoint: &EndpointUrl,
        parameters: &[(&str, &str)],
    ) -> Result<Bytes, LoginError> {
        let form = self.form(parameters);
        let (status, body) = self.source.post(endpoint, form).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        Err(match serde_json::from_slice(&body) {
            Ok(error) => LoginError::Refused(error),
            Err(_) => FetchError::failed(endpoint, &format!("the response is {status}")).into(),
        })
    }

    fn form(&self, parameters: &[(&str, &str)]) -> String {
        let mut form = Serializer::new(String::new());
        form.extend_pairs(parameters).append_pair("client_id", &self.client_id);
        if let Some(secret) = &self.secret {
            form.append_pair("client_secret", secret.expose_secret());
        }
        form.finish()
    }
}

impl OauthError {
    /// Creates the error of a redirect.
    pub fn new(error: String, error_description: Option<String>) -> Self {
        Self { error, error_description }
    }
}

impl std::fmt::Display for OauthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&self.error))?;
        match &self.error_description {
            Some(description) => write!(f, ": {}", printable(description)),
            None => Ok(()),
        }
    }
}

/// Returns a text of an issuer without control characters, which could change what a terminal shows.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}
