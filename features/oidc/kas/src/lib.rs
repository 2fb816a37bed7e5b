//! Callers with OIDC tokens, as a source of `access`. The issuer proves who the caller is, and the identity file has the rights.
#![warn(missing_docs)]

mod authorizer;
mod ci_job;
mod deployments;
mod login;

pub use self::{authorizer::OidcAuthorizer, deployments::TokenDeployments};
