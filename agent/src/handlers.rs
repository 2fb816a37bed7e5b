//! What agentk does with a request: one file per service.

pub(crate) mod control;
pub mod kubernetes;
pub mod prometheus;

use proto::Reason;

use crate::{Failure, upstream::UpstreamError};

/// Whose fault it is that there is no response. The error's own line names the address and nothing secret.
fn unanswered(error: &UpstreamError) -> Failure {
    use UpstreamError as E;

    let reason = match error {
        E::Resolve { .. } | E::Connect { .. } | E::Tls { .. } => Reason::ClusterUnreachable,
        E::ConnectTimeout { .. } | E::ResponseTimeout { .. } | E::WriteTimeout { .. } => {
            Reason::ClusterTimeout
        }
        E::ClosedBeforeResponse { .. } | E::InvalidResponse { .. } => Reason::ClusterMisbehaved,
        E::TlsSetup { .. } => Reason::ClusterCredential,
        E::RequestBody { .. } | E::InvalidTarget { .. } => Reason::BadRequest,
    };
    Failure::new(reason, error)
}
