//! OpenID Connect: tokens (JWT) that issuers sign, as proof of who a caller is.
//!
//! ```text
//!  token ──► UnverifiedToken::parse ──► Issuers::find (iss) ──► Issuer::keys_for (kid) ──► verify ──► VerifiedToken
//!                                                                   │
//!  issuer ══► DocumentSource ══► ProviderMetadata, KeySet ══► run ──┘
//! ```
//!
//! The rights of a verified token are in the identity file.
//!
//! `kas login` and the web page get the tokens of people with [`AuthorizationRequest`] and [`OauthClient`].
#![warn(missing_docs)]

mod authorization;
mod client;
mod config;
mod endpoint;
mod issuer;
mod key_state;
mod keys;
mod metadata;
mod metrics;
mod oauth;
mod page_login;
mod policy;
mod scopes;
mod token;

pub use self::{
    authorization::AuthorizationRequest,
    client::{AuthorityError, DocumentSource, FetchError, IssuerClient},
    config::{IssuerConfig, OidcConfig, PageLoginConfig, SigningAlgorithm, StreamGrace},
    endpoint::{EndpointUrl, EndpointUrlError},
    issuer::{Issuer, Issuers, KeysUnavailable},
    keys::JwkSet,
    metadata::ProviderMetadata,
    metrics::OidcMetrics,
    oauth::{LoginError, OauthClient, OauthError, RequestedToken, Tokens, printable},
    page_login::PageLogin,
    scopes::{scope_of, scopes_for},
    token::{Claims, TokenError, UnverifiedToken, VerifiedToken},
};
