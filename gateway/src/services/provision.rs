//! The part of kas in the service `provision` that callers use. The requests before those of CI jobs are in the module `provisioner`.

use proto::ServiceName;

use super::RequestType;

/// The type of the service `provision`.
#[derive(Debug)]
pub(super) struct Provision;

impl RequestType for Provision {
    fn name(&self) -> &'static str {
        ServiceName::PROVISION
    }
}
