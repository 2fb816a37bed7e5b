//! The services that a caller may use, with the verbs of each.

use proto::{ServiceName, ServiceRight, Verb};
use request_info::prometheus::SeriesLabels;

/// The services that a caller may use, with the verbs of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceRights {
    /// All services, with all verbs.
    All,
    /// These. A service may be in the list several times.
    Only(Vec<ServiceRight>),
}

impl ServiceRights {
    /// Returns whether the caller may do this with a service.
    pub fn allow(&self, service: &ServiceName, verb: Verb) -> bool {
        match self {
            Self::All => true,
            Self::Only(rights) => {
                rights.iter().any(|right| right.service == *service && right.verbs.contains(&verb))
            }
        }
    }

    /// Returns the labels of the series to which requests to a service are restricted, if they are. A right without labels does not lift
    /// those of another one.
    pub(crate) fn labels(&self, service: &ServiceName) -> Option<&SeriesLabels> {
        match self {
            Self::All => None,
            Self::Only(rights) => {
                let mut rights = rights.iter().filter(|right| right.service == *service);
                rights.find_map(|right| right.labels.as_ref())
            }
        }
    }
}
