//! Enforces what agentk may send to the cluster: the policy of its owner (`--policy-file`, the crate `agentk-policy`), and the scope of
//! `--namespaces` and of its configuration.
//!
//! ```text
//!   request ──► agentk_policy: the first rule that matches ──► enforcer: count, log, pass or 403
//!   file, whenever it changes ──► parsed, or the last good version stays in force ────────────┤
//!   labels of namespaces, whenever they change ──► label_store ───────────────────────────────┤
//!   requests in flight that are refused now ──► layer: PermittedRequest is revoked ◄──────────┘
//! ```
//!
//! `scope` is a second restriction, which applies in addition to the policy.
//!
//! Both judge the requests of callers, and those of the features for the services that a rule may name. They do not judge the requests that
//! agentk needs for itself: the version and the UID of the cluster, reviews of rights, Leases, and the namespaces with their labels.

mod enforcer;
mod label_store;
mod layer;
mod scope;

pub(crate) use self::layer::{PermittedRequest, PolicyLayer, Restriction};
pub use self::{
    enforcer::{PolicyEnforcer, Verdict},
    label_store::LabelStore,
    scope::{MissingScope, ScopeEnforcer},
};
