//! GitLab as a client of kas: the RPCs that it calls.

pub(crate) mod rpcs;
