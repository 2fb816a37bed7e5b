//! The OAuth server of GitLab: the application that GitLab knows for kas, and its endpoints.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use oidc::{AuthorizationRequest, DocumentSource, EndpointUrl, FetchError, LoginError, OauthClient};
use secrecy::SecretString;
use tokio::task::spawn_blocking;

use crate::{Endpoint, GitLabClient, config::GitLabLoginConfig};

/// The scopes of the tokens: reading alone.
const SCOPES: &str = "read_api";
/// The setting of the secret.
const SECRET_KEY: &str = "gitlab.login.client_secret_file";

/// The application of kas in GitLab.
#[derive(Clone, Debug)]
pub(super) struct OauthApplication {
    client_id: String,
    secret_file: Option<PathBuf>,
    /// The URL of GitLab for browsers.
    gitlab: EndpointUrl,
    forms: Arc<GitLabForms>,
}

/// Sends forms to the OAuth server of GitLab.
#[derive(Debug)]
struct GitLabForms(GitLabClient);

impl OauthApplication {
    pub(super) fn new(client: GitLabClient, config: &GitLabLoginConfig, gitlab: EndpointUrl) -> Self {
        Self {
            client_id: config.client_id.value.trim().to_owned(),
            secret_file: config.client_secret_file.as_ref().map(|file| file.value.clone()),
            gitlab,
            forms: Arc::new(GitLabForms(client)),
        }
    }

    /// Returns the page of GitLab at which a person logs in.
    pub(super) fn url(&self, request: &AuthorizationRequest) -> String {
        let parameters = [("scope", SCOPES.to_owned())];
        request.url(&self.client(None), &self.endpoint(Endpoint::OauthAuthorize), &parameters)
    }

    /// Returns the code of a redirect, or `None` if it is that of another login.
    pub(super) fn code(
        &self,
        request: &AuthorizationRequest,
        query: &str,
    ) -> Option<Result<String, LoginError>> {
        request.code(query, &self.client(None))
    }

    /// Returns a client with the secret, which is read now.
    pub(super) async fn with_secret(&self) -> Result<OauthClient, LoginError> {
        let Some(file) = self.secret_file.clone() else { return Ok(self.client(None)) };
        let read = spawn_blocking(move || files::read_text(&file)).await;
        let text = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        let text =
            text.map_err(|error| LoginError::Failed(format!("{SECRET_KEY} cannot be read: {error}")))?;
        Ok(self.client(Some(SecretString::from(text.trim()))))
    }

    /// Lets GitLab forget a token. An access token that is not revoked is valid for two hours.
    pub(super) async fn revoke(&self, token: &str) -> Result<(), LoginError> {
        let client = self.with_secret().await?;
        client.post(&self.endpoint(Endpoint::OauthRevoke), &[("token", token)]).await.map(drop)
    }

    fn client(&self, secret: Option<SecretString>) -> OauthClient {
        OauthClient::of_opaque_tokens(
            Arc::clone(&self.forms) as Arc<dyn DocumentSource>,
            self.gitlab.to_string().trim_end_matches('/').to_owned(),
            self.client_id.clone(),
            secret,
            self.endpoint(Endpoint::OauthToken),
        )
    }

    fn endpoint(&self, endpoint: Endpoint) -> EndpointUrl {
        self.gitlab.join(endpoint.path()).expect("a path below a URL that is valid")
    }
}

impl DocumentSource for GitLabForms {
    fn get<'a>(&'a self, url: &'a EndpointUrl) -> BoxFuture<'a, Result<Bytes, FetchError>> {
        Box::pin(async move {
            Err(FetchError::failed(url, &"kas reads no document of the OAuth server of GitLab"))
        })
    }

    fn post<'a>(
        &'a self,
        url: &'a EndpointUrl,
        form: String,
    ) -> BoxFuture<'a, Result<(StatusCode, Bytes), FetchError>> {
        let is_revocation = url.uri().path().ends_with(Endpoint::OauthRevoke.path());
        let endpoint = if is_revocation { Endpoint::OauthRevoke } else { Endpoint::OauthToken };
        Box::pin(async move {
            let response = self.0.post_form(endpoint, form).await;
            let response = response.map_err(|error| FetchError::failed(url, &error))?;
            Ok((response.status(), response.into_body()))
        })
    }
}
