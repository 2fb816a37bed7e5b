//! Enforces what agentk may send to the cluster: the policy of its owner (`--policy-file`, the crate `agentk-policy`), and the scope of
//! `--namespaces` and of its configuration.
//!
//! ```text
//!   request ──► agentk_policy: the first rule that matches ──► enforcer: count, log, pass or 403
//!   file, whenever it changes ──► parsed, or the last good version stays in force ────────────┤
//!   requests in flight that the new version refuses ──► layer: PermittedRequest is revoked ◄──┘
//! ```
//!
//! `scope` is a second restriction, which applies in addition to the policy.
//!
//! agentk sends no request to the cluster that the policy refuses.

mod enforcer;
mod layer;
mod scope;

pub(crate) use self::layer::{PermittedRequest, PolicyLayer, Restriction};
pub use self::{
    enforcer::{PolicyEnforcer, Verdict},
    scope::{MissingScope, ScopeEnforcer},
};
