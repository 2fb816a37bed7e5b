//! The events for which a request is in the audit log.

use std::sync::Arc;

use access::Grant;
use proto::Reason;

use crate::{destination::Destination, request_types::RequestOperation};

/// The reason for which a request is in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AuditEvent {
    /// The method may change something.
    Change,
    /// The request asks for an upgrade: exec, attach, port-forward.
    Upgrade,
    /// The request reads secrets, or creates a token.
    SecretRead,
    /// The request reads a path that servers could interpret differently, so that it may be one of secrets.
    UnclearPath,
    /// GitLab or an issuer was asked for the caller.
    Login,
    /// The request reads all agents that the caller may use.
    AgentList,
    /// The credential or the request was refused.
    Refusal,
    /// Refusals of strangers have no lines, and are counted.
    LeftOut,
}

/// An authorized request.
#[derive(Debug)]
pub struct AuditedAccess {
    /// The rights of the caller.
    pub grant: Arc<Grant>,
    /// The agent and its service.
    pub destination: Destination,
    /// The operation in the cluster.
    pub operation: RequestOperation,
    /// The caller asks for an upgrade to another protocol.
    pub upgrade: bool,
    /// GitLab or an issuer was asked for the caller.
    pub login: bool,
}

impl AuditEvent {
    /// Returns the events of an authorized request.
    pub(super) fn of(access: &AuditedAccess) -> Vec<Self> {
        let operation = &access.operation;
        let events = [
            (operation.changes, Self::Change),
            (access.upgrade, Self::Upgrade),
            (operation.reads_secret, Self::SecretRead),
            (operation.unclear_path, Self::UnclearPath),
            (access.login, Self::Login),
        ];
        events.into_iter().filter_map(|(shown, event)| shown.then_some(event)).collect()
    }
}

/// Returns whether an error refuses the caller or its request. An agent that the caller may not use is reported as missing.
pub(super) fn is_refusal(status: u16, reason: Option<Reason>) -> bool {
    let by_reason =
        matches!(reason, Some(Reason::Disabled | Reason::UnknownAgent | Reason::NestedImpersonation));
    matches!(status, 401 | 403) || by_reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_statuses_and_reasons() {
        for reason in Reason::ALL {
            let refusal = is_refusal(reason.status().as_u16(), Some(*reason));
            let expected = matches!(
                reason,
                Reason::Unauthorized
                    | Reason::Forbidden
                    | Reason::AddressNotAllowed
                    | Reason::OriginNotAllowed
                    | Reason::NestedImpersonation
                    | Reason::UnknownAgent
                    | Reason::NotProxied
                    | Reason::NotEnforceable
                    | Reason::RefusedByPolicy
                    | Reason::Disabled
            );
            assert_eq!(refusal, expected, "{reason}");
        }
        assert!(is_refusal(403, None), "the cluster refuses, too");
        assert!(!is_refusal(404, None));
    }
}
