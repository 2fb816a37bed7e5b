//! The part of kas in the service `alerts`, which agentk serves.

use proto::ServiceName;

use super::RequestType;

/// The type of the service `alerts`.
#[derive(Debug)]
pub(super) struct Alerts;

impl RequestType for Alerts {
    fn name(&self) -> &'static str {
        ServiceName::ALERTS
    }
}
