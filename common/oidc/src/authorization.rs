//! A login in a browser: the authorization code flow (RFC 6749 section 4.1) with PKCE (RFC 7636).

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use url::form_urlencoded::{self, Serializer};

use super::{EndpointUrl, LoginError, OauthClient, OauthError, Tokens};

/// One login. Its values are known to the browser or the program that logs in, and to the issuer as far as it needs them.
#[derive(Clone, Serialize, Deserialize)]
pub struct AuthorizationRequest {
    state: String,
    nonce: String,
    verifier: String,
    redirect_uri: String,
}

impl AuthorizationRequest {
    /// Begins a login that ends with a redirect to this URL.
    pub fn new(redirect_uri: String) -> Self {
        let [state, nonce, verifier] = [random(), random(), random()];
        Self { state, nonce, verifier, redirect_uri }
    }

    /// Returns the URL of the page of the issuer at which a person logs in.
    pub fn url(&self, client: &OauthClient, endpoint: &EndpointUrl, parameters: &[(&str, String)]) -> String {
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier));
        let mut query = Serializer::new(String::new());
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("state", &self.state)
            .append_pair("nonce", &self.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .extend_pairs(parameters);
        let separator = if endpoint.uri().query().is_some() { '&' } else { '?' };
        format!("{endpoint}{separator}{}", query.finish())
    }

    /// Returns the code in the query of a redirect, or `None` if it is the redirect of another login.
    ///
    /// # Errors
    ///
    /// The issuer refused the login, or the redirect is not that of the issuer of this client.
    pub fn code(&self, query: &str, client: &OauthClient) -> Option<Result<String, LoginError>> {
        let parameters: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let state = parameters.get("state").map(String::as_bytes).unwrap_or_default();
        if !bool::from(state.ct_eq(self.state.as_bytes())) {
            return None;
        }
        // RFC 9207 section 2.4: another issuer must not be able to inject its code, or to get that of this one.
        let problem = match parameters.get("iss") {
            Some(from) if *from != client.issuer => Some("the browser came back from another issuer (iss)"),
            None if client.requires_iss => {
                Some("the redirect does not name the issuer (iss), although this one announces that it does")
            }
            _ => None,
        };
        if let Some(what) = problem {
            return Some(Err(LoginError::Failed(what.to_owned())));
        }
        Some(match (parameters.get("code"), parameters.get("error")) {
            (Some(code), None) => Ok(code.clone()),
            (_, error) => {
                let error = error.cloned().unwrap_or_else(|| "the redirect has no code".to_owned());
                let description = parameters.get("error_description").cloned();
                Err(LoginError::Refused(OauthError::new(error, description)))
            }
        })
    }

    /// Exchanges the code of the redirect for tokens.
    ///
    /// # Errors
    ///
    /// The issuer refuses the code, does not respond, or sends the token of another login.
    pub async fn exchange(&self, client: &OauthClient, code: &str) -> Result<Tokens, LoginError> {
        let parameters = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &*self.redirect_uri),
            ("code_verifier", &*self.verifier),
        ];
        client.request_tokens(&parameters, Some(&self.nonce)).await
    }
}

impl std::fmt::Debug for AuthorizationRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthorizationRequest")
            .field("redirect_uri", &self.redirect_uri)
            .finish_non_exhaustive()
    }
}

/// Returns 256 random bits: `state`, `nonce` and the verifier of PKCE cannot be guessed.
fn random() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{IssuerClient, ProviderMetadata, RequestedToken};

    fn client(announces_iss: bool) -> OauthClient {
        let metadata = serde_json::json!({
            "issuer": "https://a", "jwks_uri": "https://a/keys", "token_endpoint": "https://a/token",
            "authorization_response_iss_parameter_supported": announces_iss,
        });
        let metadata = ProviderMetadata::parse(metadata.to_string().as_bytes(), "https://a").unwrap();
        let source = Arc::new(IssuerClient::new(None));
        let kind = RequestedToken::Id;
        OauthClient::new(source, "https://a".into(), "kas".into(), None, &metadata, kind).unwrap()
    }

    fn code(query: &str, announces_iss: bool) -> Option<Result<String, String>> {
        let request = AuthorizationRequest {
            state: "s1".into(),
            ..AuthorizationRequest::new("https://kas.example.com/callback".into())
        };
        let code = request.code(query, &client(announces_iss));
        code.map(|code| code.map_err(|error| error.to_string()))
    }

    #[test]
    fn only_the_redirect_of_this_login_has_its_code() {
        assert_eq!(code("code=c%201&state=s1", false), Some(Ok("c 1".into())));
        assert_eq!(code("code=c&state=s1&iss=https://a", false), Some(Ok("c".into())));
        for query in ["", "code=c", "code=c&state=", "code=c&state=s2"] {
            assert_eq!(code(query, false), None, "{query}");
        }
        let refused = code("error=access_denied&error_description=no%0Ano&state=s1", false);
        assert_eq!(refused, Some(Err("the issuer refused the login: access_denied: nono".into())));
        assert!(matches!(code("state=s1", false), Some(Err(_))));
        assert!(matches!(code("code=c&state=s1&iss=https://evil", false), Some(Err(_))));
    }

    #[test]
    fn redirect_of_an_issuer_that_announces_iss_has_it() {
        assert_eq!(code("code=c&state=s1&iss=https%3A%2F%2Fa", true), Some(Ok("c".into())));
        for query in ["code=c&state=s1", "error=access_denied&state=s1"] {
            let error = code(query, true).unwrap().unwrap_err();
            assert!(error.contains("does not name the issuer (iss)"), "{query}: {error}");
        }
        assert!(matches!(code("code=c&state=s1&iss=https://evil", true), Some(Err(_))));
    }
}
