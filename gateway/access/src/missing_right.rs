//! The error of a caller that lacks the right for a request.

use proto::{Reason, Verb};

use crate::{error::RequestError, identity::Caller, target::Target};

/// Returns the error of a request that [`Caller::may`] does not allow. `remedy` is a sentence about the setting that can allow it.
pub fn missing_right(caller: &Caller, target: &Target<'_>, remedy: &str) -> RequestError {
    let (service, verb) = (&target.service, target.verb());
    let action = match verb {
        Verb::Use => format!("use the service {service}"),
        _ if !caller.may_use_service(service) => format!("use the service {service}"),
        _ => format!("{verb} with the service {service}"),
    };
    RequestError::new(Reason::Forbidden, format!("caller {} may not {action}: {remedy}", caller.name()))
}
