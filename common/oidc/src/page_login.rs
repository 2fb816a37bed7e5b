//! The login of people to the web page at an issuer.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use files::unreadable;
use secrecy::SecretString;

use super::{
    DocumentSource, EndpointUrl, IssuerConfig, LoginError, OauthClient, ProviderMetadata, RequestedToken,
    scopes_for,
};

/// The client that an issuer knows for the web page.
#[derive(Clone, Debug)]
pub(super) struct PageClient {
    client_id: String,
    secret_file: Option<PathBuf>,
    scopes: Option<Vec<String>>,
}

/// The means for one login.
#[derive(Debug)]
pub struct PageLogin {
    /// Exchanges the code.
    pub client: OauthClient,
    /// The page of the issuer.
    pub endpoint: EndpointUrl,
    /// The scopes, separated by spaces.
    pub scopes: String,
}

impl PageClient {
    /// Returns the client of an entry of `oidc.issuers`, if people log in to the page there.
    pub(super) fn of(config: &IssuerConfig) -> Option<Self> {
        let web = config.web.as_ref()?;
        let client_id = web.client_id.as_ref().map(|client| client.value.clone());
        Some(Self {
            client_id: client_id.or_else(|| config.audiences.value.first().cloned())?,
            secret_file: web.client_secret_file.as_ref().map(|file| file.value.clone()),
            scopes: config.scopes.as_ref().map(|scopes| scopes.value.clone()),
        })
    }

    /// Returns the means for a login that needs these claims.
    pub(super) fn login<'a>(
        &self,
        source: Arc<dyn DocumentSource>,
        issuer: &str,
        metadata: &ProviderMetadata,
        claims: impl IntoIterator<Item = &'a str>,
    ) -> Result<PageLogin, LoginError> {
        let secret = self.secret_file.as_deref().map(read_secret).transpose()?;
        let (issuer, client_id) = (issuer.to_owned(), self.client_id.clone());
        let client = OauthClient::new(source, issuer, client_id, secret, metadata, RequestedToken::Id);
        let (Some(client), Some(endpoint)) = (client, metadata.authorization_endpoint.clone()) else {
            return Err(LoginError::Failed("people cannot log in with a browser at this issuer".to_owned()));
        };
        let scopes = self.scopes.as_ref().map(|scopes| scopes.join(" "));
        let scopes = scopes.unwrap_or_else(|| scopes_for(claims, metadata));
        // A session ends with its token, so that the page needs no refresh token.
        let scopes =
            scopes.split(' ').filter(|scope| *scope != "offline_access").collect::<Vec<_>>().join(" ");
        Ok(PageLogin { client, endpoint, scopes })
    }
}

fn read_secret(file: &Path) -> Result<SecretString, LoginError> {
    let text = files::read_text(file).map_err(|error| {
        let (file, error) = (file.display(), unreadable(&error));
        // People at the page need no path of this machine.
        tracing::warn!(%file, error, "the secret of an OIDC client cannot be read");
        LoginError::Failed("kas cannot read the secret of its client: its log has the reason".to_owned())
    })?;
    Ok(text.trim().into())
}
