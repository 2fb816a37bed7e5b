//! Logins of people in a browser, with the authorization code flow.

use std::net::IpAddr;

use access::{LoginRequest, UserLoginError};
use oidc::{AuthorizationRequest, Issuer};
use secrecy::SecretString;
use serde_json::Value;

use crate::OidcAuthorizer;

impl OidcAuthorizer {
    pub(crate) fn begin_login(
        &self,
        issuer: &str,
        redirect: String,
    ) -> Result<Option<LoginRequest>, UserLoginError> {
        let Some(issuer) = self.login_issuer(issuer) else { return Ok(None) };
        let identity = self.identities.load();
        let login = issuer.page_login(identity.oidc_claims(issuer.name())).map_err(failure)?;
        let request = AuthorizationRequest::new(redirect);
        Ok(Some(LoginRequest {
            url: request.url(&login.client, &login.endpoint, &[("scope", login.scopes)]),
            state: serde_json::to_value(&request).expect("its values are texts"),
        }))
    }

    pub(crate) async fn complete_login(
        &self,
        issuer: &str,
        state: Value,
        query: &str,
        address: IpAddr,
    ) -> Result<Option<SecretString>, UserLoginError> {
        let Some(issuer) = self.login_issuer(issuer) else { return Ok(None) };
        let Ok(request) = serde_json::from_value::<AuthorizationRequest>(state) else { return Ok(None) };
        let login = issuer.page_login([]).map_err(failure)?;
        let Some(code) = request.code(query, &login.client) else { return Ok(None) };
        let code = code.map_err(failure)?;
        self.unknown.check(address).map_err(UserLoginError::Limited)?;
        match request.exchange(&login.client, &code).await {
            Ok(tokens) => Ok(Some(tokens.token)),
            Err(error) => {
                self.unknown.count(address).await.map_err(UserLoginError::Limited)?;
                Err(failure(error))
            }
        }
    }

    fn login_issuer(&self, name: &str) -> Option<&Issuer> {
        self.issuers.of_the_page().find(|issuer| issuer.name() == name)
    }
}

fn failure(error: oidc::LoginError) -> UserLoginError {
    let text = error.to_string();
    match error {
        oidc::LoginError::Unavailable(_) => UserLoginError::Unavailable(text),
        oidc::LoginError::Refused(_) => UserLoginError::Refused(text),
        oidc::LoginError::Failed(_) => UserLoginError::Failed(text),
    }
}
