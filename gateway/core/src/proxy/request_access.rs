//! The access of a request to its agent, from its authorization to its last byte.

use std::{future::pending, net::IpAddr, pin::Pin, sync::Arc, time::SystemTime};

use access::{
    Grant, ManagedEnvironment, RequestError,
    kill_switch::{KillSwitch, RequestAttributes},
};
use http::Uri;
use proto::Reason;
use tokio::time::sleep;

use crate::destination::Destination;

/// The result of authorization: the rights of the caller, and where its request goes.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) grant: Arc<Grant>,
    pub(super) destination: Destination,
    /// Path and query as the service receives them.
    pub(super) uri: Uri,
    /// The part of the path before that, by which kas serves the agent.
    pub(super) prefix: Box<str>,
    /// The caller asks for an upgrade to another protocol.
    pub(super) upgrade: bool,
    /// The environment whose objects have to exist before.
    pub(super) environment: Option<Arc<ManagedEnvironment>>,
}

/// The future of [`Access::ended`]. It is created once for each request, and watches it from its authorization to its last byte.
pub(super) type AccessEnded = Pin<Box<dyn Future<Output = RequestError> + Send>>;

impl Access {
    /// Completes when the caller loses its rights, when its token has expired for too long, or when a rule disables the request.
    /// Returns the error for the caller.
    pub(super) fn ended(&self, kill_switch: &Arc<KillSwitch>, client: IpAddr) -> AccessEnded {
        let kill_switch = Arc::clone(kill_switch);
        let (grant, destination) = (Arc::clone(&self.grant), self.destination.clone());
        Box::pin(async move {
            let request = RequestAttributes {
                address: Some(client),
                service: &destination.service,
                agent: Some(destination.attributes()),
                caller: Some(grant.caller.name()),
                user: grant.caller.user.as_deref(),
            };
            tokio::select! {
                () = grant.revoked.cancelled() => revoked(grant.caller.name()),
                () = passed(grant.streams_end) => expired(grant.caller.name()),
                error = kill_switch.disabled(request) => error,
            }
        })
    }
}

/// Returns the error of a request in flight whose caller may do less than before.
fn revoked(caller: &str) -> RequestError {
    let what =
        format!("the token of caller {caller} was revoked, or its rights were reduced, during the request");
    RequestError::new(Reason::Forbidden, what)
}

/// Returns the error of a request in flight whose token has expired for too long.
fn expired(caller: &str) -> RequestError {
    let what = format!(
        "the OIDC token of caller {caller} expired during the request, and oidc.issuers[].stream_grace has passed"
    );
    RequestError::new(Reason::Unauthorized, what)
}

/// Completes at a time of the system's clock as it is now, or never for `None`.
async fn passed(time: Option<SystemTime>) {
    match time {
        // The timer is boxed, because most requests have none.
        Some(time) => Box::pin(sleep(time.duration_since(SystemTime::now()).unwrap_or_default())).await,
        None => pending().await,
    }
}
